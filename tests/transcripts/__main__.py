"""Compares all transcripts with the recorded ones: `python -m tests.transcripts`.

It prints what differs and fails then. `--record` writes the transcripts to `recorded` instead, for
a commit that says why they changed. Names choose scenarios: `ways`, `ways/make`, `'*/*asyncio*'`.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
import traceback

from tests.support.groups import GROUPS, installed
from tests.transcripts import recorded_files
from tests.transcripts.compare import differences
from tests.transcripts.scenarios import SCENARIOS
from tests.transcripts.scene import WIDTH, Scenario, Shared, transcript


def main() -> int:
    """Compares, records or prints; returns the exit status."""
    options = _parse()
    played = differing = skipped = 0
    begin = time.process_time()
    with Shared() as shared:
        for group, scenarios in SCENARIOS.items():
            chosen = {
                name: scenario
                for name, scenario in scenarios.items()
                if _is_chosen(f"{group}/{name}", options.names)
            }
            path = recorded_files.path_of(group)
            recorded = recorded_files.read(path)
            found = {name: recorded[name] for name in scenarios if name in recorded}
            for name, scenario in chosen.items():
                if not _can_play(scenario):
                    skipped += 1
                    continue
                played += 1
                try:
                    now = transcript(scenario, shared, None if options.long else WIDTH)
                except Exception:
                    differing += 1
                    print(f"{group}/{name} failed:\n{traceback.format_exc()}", flush=True)
                    continue
                found[name] = now
                if options.long:
                    print("\n".join([f"== {group}/{name}", *now]), flush=True)
                elif changed := differences(recorded.get(name, []), now):
                    differing += 1
                    print(f"== {group}/{name}", *changed, sep="\n", flush=True)
            if options.record and not options.long and chosen:
                recorded_files.write(
                    path, {name: found[name] for name in scenarios if name in found}
                )
    print(
        f"{played} scenarios, {differing} differ or fail, {skipped} skipped for want of programs; "
        f"{time.process_time() - begin:.1f} s of processor time in this process"
    )
    return int(differing > 0 and not options.record and not options.long)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.transcripts", description=__doc__)
    parser.add_argument("names", nargs="*", help="which; all if none are named")
    parser.add_argument("--record", action="store_true", help="write them to tests/transcripts")
    parser.add_argument("--long", action="store_true", help="print whole lines; compare nothing")
    return parser.parse_args()


def _is_chosen(name: str, patterns: list[str]) -> bool:
    return not patterns or any(
        name.startswith(f"{pattern}/") or fnmatch.fnmatchcase(name, pattern) for pattern in patterns
    )


def _can_play(scenario: Scenario) -> bool:
    return all(installed(program) for program in GROUPS.get(scenario.needs, ()))


if __name__ == "__main__":
    sys.exit(main())
