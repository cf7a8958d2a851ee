"""The whole reliability scorecard, in one command.

    python -m tests.reliability                     # everything, at the scorecard's counts
    python -m tests.reliability --rows 1,2,31-34    # some rows
    python -m tests.reliability --quick             # at the counts of the gate
    python -m tests.reliability --list              # the rows, and the files that hold their tests
    python -m tests.reliability --json run.json --markdown run.md
    python -m tests.reliability --rows 24 --with run.json --json run.json    # 24 once more

Each row is a run of pytest of its own over the tests that have the row's marker. The command
prints what was tried, what has to be seen and what was seen, and exits with 1 if a row fails or has
no test. At full counts the bounds are the scorecard's own, so nothing else should run beside it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
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


def run_row(row: Row, mode: str) -> RowResult:
    """Runs the tests of a row."""
    files = files_of().get(row.number, [])
    if not files:
        return RowResult(row, [])
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.jsonl"
        record.touch()
        output = Path(folder) / "output.txt"
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-rf", "-o", "addopts=--strict-markers"),
            *("-p", recording.__name__, "-p", "no:cacheprovider", "-p", "no:xdist"),
            *map(str, files),
        ]
        started = time.monotonic()
        with output.open("w") as file:
            process = subprocess.Popen(
                command,
                cwd=TESTS.parent,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    MODE: mode,
                    recording.ROW: str(row.number),
                    recording.RECORD: str(record),
                },
            )
            try:
                code = process.wait(_ROW_SECONDS)
            except BaseException:
                process.kill()
                process.wait()
                raise
        tests = [json.loads(line) for line in record.read_text().splitlines()]
        result = RowResult(row, tests, time.monotonic() - started, code)
        if result.outcome != PASSED:
            print(textwrap.indent(output.read_text()[-6000:], "    "))
    return result


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
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what each test saw")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table")
    parser.add_argument(
        "--with",
        dest="earlier",
        type=Path,
        metavar="FILE",
        help="what --json wrote: the rows of that run that are not run now are reported as well",
    )
    options = parser.parse_args(arguments)
    if options.list:
        for number in options.rows:
            files = [str(path.relative_to(TESTS.parent)) for path in files_of().get(number, [])]
            print(f"{number:2} {ROWS[number].tried}\n   {', '.join(files) or report.MISSING}")
        return 0
    mode = QUICK if options.quick else FULL
    began = datetime.datetime.now()
    results: dict[int, RowResult] = {}
    if options.earlier is not None:
        results = report.read(options.earlier, mode)
    for index, number in enumerate(options.rows, 1):
        print(f"row {number} ({index} of {len(options.rows)})", flush=True)
        results[number] = run_row(ROWS[number], mode)
        _print(results[number])
        # After every row, so that a run that is broken off has written what it saw.
        ordered = [results[known] for known in sorted(results)]
        about = report.facts(mode, began, sum(result.seconds for result in ordered))
        if options.markdown is not None:
            options.markdown.write_text(report.markdown(ordered, about))
        if options.json is not None:
            options.json.write_text(report.as_json(ordered, about))
    print(report.summary(ordered))
    return 0 if {result.outcome for result in ordered} == {PASSED} else 1


if __name__ == "__main__":
    sys.exit(main())
