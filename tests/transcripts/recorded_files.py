"""The files of recorded transcripts: text, with a section for each scenario.

A part of a transcript, such as what passed on one stream, that is the same as a part of an earlier
section refers to it: so a file is short, and shows which ways to play are the same on the wire.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

FOLDER = Path(__file__).parent / "recorded"

_SECTION = "== "
_PART = re.compile(r"-- (?:stream|connection|seen)")
_REFERENCE = re.compile(r'-- as part ([0-9]+) of "(.*)"')
_SHORT = 3
"""A part of fewer lines is written out."""


def path_of(group: str) -> Path:
    """Returns the file of a group of scenarios."""
    return FOLDER / f"{group}.txt"


def read(path: Path) -> dict[str, list[str]]:
    """Returns the transcripts in a file by the names of their scenarios; none if there is none."""
    parts: dict[str, list[list[str]]] = {}
    section: list[list[str]] = []
    # Not `splitlines`, which knows more ends of lines than a file has.
    for line in path.read_text("utf-8").split("\n") if path.exists() else ():
        reference = _REFERENCE.fullmatch(line)
        if line.startswith(_SECTION):
            section = parts.setdefault(line.removeprefix(_SECTION), [])
        elif reference is not None:
            section.append(parts[reference[2]][int(reference[1]) - 1])
        elif _PART.match(line):
            section.append([line])
        elif line:
            section[-1].append(line)
    return {name: [line for part in section for line in part] for name, section in parts.items()}


def write(path: Path, transcripts: Mapping[str, Sequence[str]]) -> None:
    """Writes transcripts to a file, in their order."""
    lines: list[str] = []
    known: dict[tuple[str, ...], str] = {}
    for name, transcript in transcripts.items():
        lines.append(_SECTION + name)
        for number, part in enumerate(_parts(transcript), 1):
            reference = known.setdefault(tuple(part), f'-- as part {number} of "{name}"')
            is_here = reference.endswith(f'of "{name}"')
            lines += part if is_here or len(part) < _SHORT else [reference]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([*lines, ""]), "utf-8")


def _parts(transcript: Sequence[str]) -> list[list[str]]:
    parts: list[list[str]] = []
    for line in transcript:
        if _PART.match(line):
            parts.append([])
        parts[-1].append(line)
    return parts
