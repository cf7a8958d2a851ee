"""The whole reliability scorecard, in one command.

    python -m tests.reliability                     # everything, at the scorecard's counts
    python -m tests.reliability --rows 1,2,31-34    # some rows
    python -m tests.reliability --quick             # at the counts of the gate
    python -m tests.reliability --list              # the rows, and the files that hold their tests
    python -m tests.reliability --reports run --markdown run.md
    python -m tests.reliability --rows 24 --reports run --markdown run.md    # 24 once more

Each row is a run of pytest of its own over the tests that have the row's marker. The command
prints what was tried, what has to be seen and what was seen, and exits with 1 if a row fails or has
no test. `--reports` names a folder for pytest's own report of each row; rows that are there from an
earlier run with the same counts are reported as well. At full counts the bounds are the
scorecard's own, so nothing else should run beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from tests.reliability import recording, report
from tests.reliability.report import PASSED, RowResult
from tests.reliability.scorecard import FULL, MODE, QUICK, ROWS, TESTS, Row, files_of

_ROW_SECONDS = 3 * 3600


def _numbers(text: str) -> list[int]:
    """Reads "1,2,31-34"."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        try:
            wanted = range(int(first), int(last or first) + 1)
        except ValueError:
            raise argparse.ArgumentTypeError(f"rows look like 1,2,31-34, got {text!r}") from None
        if unknown := set(wanted) - set(ROWS) or not wanted:
            raise argparse.ArgumentTypeError(
                f"the scorecard has the rows 1 to {max(ROWS)}, got {text!r} ({unknown})"
            )
        numbers.update(wanted)
    return sorted(numbers)


def run_row(row: Row, mode: str, reports: Path) -> RowResult:
    """Runs the tests of a row, whose report pytest writes."""
    files = files_of().get(row.number, [])
    if not files:
        return RowResult(row)
    path = _report(reports, row, mode)
    path.unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-rf", "-o", "addopts=--strict-markers"),
        *("-p", recording.__name__, "-p", "no:cacheprovider", "-p", "no:xdist"),
        *(f"--junitxml={path}", *map(str, files)),
    ]
    with tempfile.TemporaryFile("w+") as output:
        # It is killed where it takes too long, and where this process is interrupted.
        subprocess.run(
            command,
            cwd=TESTS.parent,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, MODE: mode, recording.ROW: str(row.number)},
            timeout=_ROW_SECONDS,
            check=False,
        )
        result = report.read(row, path)
        if result.outcome != PASSED:
            output.seek(0)
            print(textwrap.indent(output.read()[-6000:], "    "))
    return result


def _report(reports: Path, row: Row, mode: str) -> Path:
    return reports / f"row-{row.number}-{mode}.xml"


def _print(result: RowResult) -> None:
    for name, text in (
        ("tried", result.row.tried),
        ("must be seen", result.row.expected),
        ("seen", result.seen),
        ("result", f"{result.outcome} ({result.seconds:.0f} s)"),
    ):
        print(textwrap.fill(f"{name}: {text}", 100, initial_indent="  ", subsequent_indent="    "))
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.reliability",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=_numbers, default=sorted(ROWS), help="such as 1,2,31-34")
    parser.add_argument("--list", action="store_true", help="show where the tests are; run none")
    parser.add_argument("--quick", action="store_true", help="the counts of the gate")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table")
    parser.add_argument("--reports", type=Path, metavar="FOLDER", help="keep pytest's reports")
    options = parser.parse_args(arguments)
    if options.list:
        for number in options.rows:
            files = [str(path.relative_to(TESTS.parent)) for path in files_of().get(number, [])]
            print(f"{number:2} {ROWS[number].tried}\n   {', '.join(files) or report.MISSING}")
        return 0
    mode = QUICK if options.quick else FULL
    began = datetime.datetime.now()
    with contextlib.ExitStack() as stack:
        reports = options.reports or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        reports.mkdir(parents=True, exist_ok=True)
        earlier = {number: _report(reports, row, mode) for number, row in ROWS.items()}
        results = {
            number: report.read(ROWS[number], path)
            for number, path in earlier.items()
            if path.exists()
        }
        for index, number in enumerate(options.rows, 1):
            print(f"row {number} ({index} of {len(options.rows)})", flush=True)
            results[number] = run_row(ROWS[number], mode, reports)
            _print(results[number])
            # After every row, so that a run that is broken off has written what it saw.
            ordered = [results[known] for known in sorted(results)]
            if options.markdown is not None:
                about = report.facts(mode, began, sum(result.seconds for result in ordered))
                options.markdown.write_text(report.markdown(ordered, about))
    print(report.summary(ordered))
    return 0 if {result.outcome for result in ordered} == {PASSED} else 1


if __name__ == "__main__":
    sys.exit(main())
