"""What reading one recording may take: see `Limits.chunk_bytes`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from dm_env_rpc_client.errors import RecordingError
from dm_env_rpc_client.tensors.limits import Limits

_RECORDS = 1 << 18
"""Records that a file of any size may have."""

_RECORD_BYTES = 2
"""A file may have one more record for this number of bytes. A message without contents takes 5
bytes or more, since its number and its time differ from those of others: zstd at level 19 needs
5.3."""

_HELD = 4
"""What the TimeSteps of a file may take, in sizes of the file, if that is more than a chunk."""


class FileBudget:
    """What is left for one file.

    Args:
      path: of the file.
      size: of the file.
      limits: what it may take.
    """

    def __init__(self, path: Path, size: int, limits: Limits):
        self._path = path
        self._limits = limits
        self._records = self._most_records = _RECORDS + size // _RECORD_BYTES
        self._left = self._most_held = max(limits.chunk_bytes, _HELD * size)

    def check(self, kind: Literal["chunk", "message"], size: int) -> None:
        """Raises RecordingError if a chunk (or another record), or a message, is too large."""
        name = f"{kind}_bytes"
        most = getattr(self._limits, name)
        if size > most:
            raise self._error(f"it has a {kind} of {size} bytes; at most {most} are allowed", name)

    def take_record(self) -> None:
        """Counts a record; RecordingError if there are too many for the size of the file."""
        self._records -= 1
        if self._records < 0:
            raise RecordingError(
                f"cannot read {self._path}: it has more than {self._most_records} records, which "
                "is too many for its size"
            )

    def hold(self, size: int) -> None:
        """Charges for memory that is kept while the file is read; RecordingError if over."""
        self._left -= size
        if self._left < 0:
            raise self._error(
                f"what has to be kept of it takes more than {self._most_held} bytes; read the "
                "episodes one by one, or allow more",
                "chunk_bytes",
            )

    def release(self, size: int) -> None:
        """Gives back what was charged."""
        self._left += size

    def _error(self, text: str, name: str) -> RecordingError:
        return RecordingError(f"cannot read {self._path}: {text} (Limits.{name})")
