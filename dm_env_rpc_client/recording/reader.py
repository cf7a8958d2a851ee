"""A reader that yields a recording's messages, even if the recorder was killed.

An unfinished file is read up to its first incomplete record. The end of a finished file states the
numbers of chunks and messages, the schemas and channels, and the checksums of the data and of the
summary. The reader requires all these values to match the contents, except for checksums of 0,
which earlier versions and most other programs write. The messages of a connection are numbered,
and each chunk is followed by its index, so a missing chunk is detected even in an unfinished file.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import zlib
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from mcap import records
from mcap.writer import MCAP0_MAGIC

from dm_env_rpc_client import arguments
from dm_env_rpc_client.errors import RecordingError
from dm_env_rpc_client.recording.bounded_records import (
    Damage,
    FileBudget,
    IndexSize,
    RecordFile,
    records_of_chunk,
)
from dm_env_rpc_client.recording.mcap_file import ENVELOPES, PROFILE, REQUESTS, built
from dm_env_rpc_client.tensors.memory_limits import DEFAULT, Limits, shortened

_DIRECTIONS = {envelope.DESCRIPTOR.full_name: name for name, envelope in ENVELOPES.items()}

_NUMBER_DIGITS = 9
"""The maximum number of digits in a connection's number."""

_CONNECTION_BYTES = 2000
"""The memory, in bytes, that a connection takes in addition to its metadata."""


@dataclasses.dataclass(frozen=True)
class RecordedConnection:
    """A recorded connection.

    Attributes:
      number: the number of the connection in the recording, from 1.
      address: the address of its server.
      metadata: the connection's metadata in the recording, such as the version of this package and
        the transport.
    """

    number: int
    address: str
    metadata: Mapping[str, str]


class Entry(NamedTuple):
    """A recorded message.

    Attributes:
      connection: the connection of the message.
      is_request: True for an EnvironmentRequest, False for an EnvironmentResponse.
      sequence: the number of the message among the connection's requests or answers, from 1.
      nanoseconds: the time at which the message was sent or received, in nanoseconds since the
        epoch.
      message: the serialized message.
    """

    connection: RecordedConnection
    is_request: bool
    sequence: int
    nanoseconds: int
    message: bytes


def check_reading(path: str | os.PathLike[str], limits: Limits) -> None:
    """Raise SpecError if the path or the limits have the wrong type."""
    arguments.path("path", path)
    arguments.instance("limits", limits, Limits, "a Limits")


class Scan:
    """A reader of a recording's messages, in recorded order.

    Args:
      path: the file.
      limits: limits for messages and chunks; see `Limits`.

    Attributes:
      connections: the connections read so far, by number.
      is_complete: whether the end of the file was read; False if the recorder was killed, or is
        still recording.
      limits: the limits for messages and chunks.
      budget: the remaining budget for reading the file.

    Raises:
      SpecError: an argument has the wrong type.
    """

    def __init__(self, path: str | os.PathLike[str], limits: Limits = DEFAULT):
        check_reading(path, limits)
        self.path = Path(path)
        self.limits = limits
        self._begin(0)

    def __iter__(self) -> Iterator[Entry]:
        """Read the file.

        Yields:
          Each message.

        Raises:
          RecordingError: the file cannot be read, is not a recording, is damaged, or exceeds the
            limits.
        """
        try:
            with open(self.path, "rb") as file:
                found = os.fstat(file.fileno())
                self._begin(found.st_size)
                if file.read(len(MCAP0_MAGIC)) != MCAP0_MAGIC:
                    raise RecordingError(
                        f"{self.path} is not a recording, because it is not an MCAP file"
                    )
                reading = RecordFile(file, found.st_size, self.budget)
                try:
                    if (yield from self._read_data(reading)):
                        self._read_summary(reading)
                except Damage as error:
                    # A recorder that resumes a finished file truncates its end during this scan.
                    after = os.fstat(file.fileno())
                    is_recorded = (after.st_size, after.st_mtime_ns) != (
                        found.st_size, found.st_mtime_ns
                    )  # fmt: skip
                    if not (reading.has_end and is_recorded):
                        raise RecordingError(
                            f"{self.path} is damaged at byte {reading.place}: {error}"
                        ) from error
        except OSError as error:
            raise RecordingError(f"cannot read the recording {self.path}: {error}") from error

    def _begin(self, size: int) -> None:
        self.is_complete = False
        self.budget = FileBudget(self.path, size, self.limits)
        self._contents = _Contents(self.budget)
        self.connections = self._contents.connections

    def _read_data(self, reading: RecordFile) -> Generator[Entry, None, bool]:
        """Yield the messages, and return whether the end of the data was read."""
        contents = self._contents
        header = reading.next()
        if header is not None and not isinstance(header, records.Header):
            raise Damage("the file does not begin with a header")
        contents.profile = "" if header is None else header.profile
        while (record := reading.next()) is not None:
            if isinstance(record, IndexSize):
                contents.check_index(record)
                continue
            contents.end_chunk()
            if isinstance(record, records.Chunk):
                contents.chunks += 1
                inside = records_of_chunk(record, self.budget)
                del record
                for inner in inside:
                    if isinstance(inner, tuple):
                        entry = contents.entry(*inner)
                        del inner
                        if entry is not None:
                            yield entry
                        del entry
                    else:
                        contents.define(inner)
            elif isinstance(record, records.Message):
                entry = contents.entry(
                    record.channel_id, record.sequence, record.log_time, record.data
                )
                del record
                if entry is not None:
                    yield entry
                del entry
            elif isinstance(record, records.DataEnd):
                if record.data_section_crc not in (0, reading.checksum):
                    raise Damage("the checksum of the data is wrong")
                reading.begin_summary()
                return True
            elif isinstance(record, records.Schema | records.Channel):
                contents.define(record)
            else:
                raise Damage(f"unexpected {_name(record)} record among the messages")
        return False

    def _read_summary(self, reading: RecordFile) -> None:
        """Check the end of the file against the contents that were read."""
        start: int | None = None
        statistics: records.Statistics | None = None
        while (record := reading.next()) is not None:
            if isinstance(record, records.Footer):
                # By the MCAP specification, the checksum covers the footer's fields before it.
                checksum = zlib.crc32(built(record)[:-4], reading.checksum)
                if record.summary_crc not in (0, checksum):
                    raise Damage("the checksum of the summary is wrong")
                if record.summary_start != (start or 0):
                    raise Damage(
                        f"the footer gives the wrong summary position {record.summary_start}"
                    )
                if statistics is not None:
                    self._contents.check_statistics(statistics)
                self.is_complete = reading.ends()
                return
            start = start or reading.place
            if isinstance(record, records.Statistics):
                if statistics is not None:
                    raise Damage("the file has two Statistics records")
                statistics = record
            elif isinstance(record, records.Schema | records.Channel):
                self._contents.is_known(record)
            else:
                raise Damage(f"unexpected {_name(record)} record after the end of the messages")


class _Contents:
    """The contents read so far, to be compared with the file's indexes and later records.

    Args:
      budget: the remaining budget for reading the file.

    Attributes:
      connections: the connections, by number.
      profile: the profile of the file.
      chunks: the number of chunks.
    """

    def __init__(self, budget: FileBudget):
        self.connections: dict[int, RecordedConnection] = {}
        self.profile = ""
        self.chunks = 0
        self._budget = budget
        self._messages: collections.Counter[int] = collections.Counter()
        # Messages of the last chunk by channel, until a record other than its indexes follows.
        self._of_chunk: collections.Counter[int] = collections.Counter()
        self._checksums: dict[tuple[type, int], int] = {}
        # The direction of each schema, and the connection of each channel; None for schemas and
        # channels of other programs.
        self._schemas: dict[int, str | None] = {0: None}
        self._channels: dict[int, tuple[RecordedConnection, bool] | None] = {}
        self._last: dict[int, int] = {}

    def entry(self, channel: int, sequence: int, nanoseconds: int, message: bytes) -> Entry | None:
        """Count a message and return it, or return None if another program wrote it."""
        self._of_chunk[channel] += 1
        try:
            found = self._channels[channel]
        except KeyError:
            raise Damage(
                f"a message belongs to channel {channel}, which is not in the file"
            ) from None
        if found is None:
            return None
        connection, is_request = found
        # The first message may have any number, because other programs may extract a part of a
        # file; programs that do not number messages write 0.
        last = self._last.get(channel)
        self._last[channel] = sequence
        if last is not None and sequence not in (0, (last + 1) & 0xFFFFFFFF):
            kind = "request" if is_request else "answer"
            raise Damage(
                f"{kind} {sequence} of connection {connection.number} is out of sequence: it "
                f"follows {kind} {last}"
            )
        return Entry(connection, is_request, sequence, nanoseconds, message)

    def check_index(self, index: IndexSize) -> None:
        """Compare an index with the chunk that precedes it."""
        count = self._of_chunk[index.channel_id]
        if index.messages != count:
            raise Damage(
                f"the index of a chunk has {index.messages:g} messages for channel "
                f"{index.channel_id}, but {count} were read"
            )

    def end_chunk(self) -> None:
        """Add the last chunk's message counts to the totals, after all its indexes were read."""
        self._messages.update(self._of_chunk)
        self._of_chunk.clear()

    def check_statistics(self, found: records.Statistics) -> None:
        """Check the statistics at the end of the file against the contents that were read."""
        counts = {channel: n for channel, n in found.channel_message_counts.items() if n}
        read = self._messages.total()
        if (found.message_count, found.chunk_count) != (read, self.chunks) or (
            counts and counts != +self._messages
        ):
            raise Damage(
                f"the file should have {found.message_count} messages in {found.chunk_count} "
                f"chunks, but {read} messages in {self.chunks} chunks were read"
            )

    def is_known(self, record: records.Schema | records.Channel) -> bool:
        """Whether a schema or channel repeats an earlier one."""
        checksum = zlib.crc32(built(record))
        key = type(record), record.id
        is_known = key in self._checksums
        if self._checksums.setdefault(key, checksum) != checksum:
            raise Damage(
                f"the {_name(record)} {record.id} is defined twice with different contents"
            )
        return is_known

    def define(self, record: records.Schema | records.Channel) -> None:
        """Register a schema or a channel."""
        if self.is_known(record):
            return
        if isinstance(record, records.Schema):
            self._schemas[record.id] = _DIRECTIONS.get(record.name)
            return
        if record.schema_id not in self._schemas:
            raise Damage(
                f"channel {record.id} has schema {record.schema_id}, which is not in the file"
            )
        direction = self._schemas[record.schema_id]
        metadata = {} if direction is None else record.metadata
        self._channels[record.id] = None
        if "connection" in metadata:
            if metadata.pop("direction", direction) != direction:
                raise Damage(
                    f"channel {record.id} has the schema for {direction}, but its metadata "
                    "names the other direction"
                )
            self._budget.hold(_CONNECTION_BYTES + 2 * len(built(record)))
            self._channels[record.id] = (self._connection(metadata), direction == REQUESTS)
        elif self.profile == PROFILE:
            raise Damage(f"channel {record.id} does not specify its connection")

    def _connection(self, metadata: Mapping[str, str]) -> RecordedConnection:
        named = metadata["connection"]
        if len(named) > _NUMBER_DIGITS or not (named.isascii() and named.isdecimal()):
            raise Damage(
                f"the number of a connection is {shortened(named, 40)!r}; expected 1 to "
                f"{_NUMBER_DIGITS} digits"
            )
        number = int(named)
        made = RecordedConnection(number, metadata.get("address", ""), metadata)
        return self.connections.setdefault(number, made)


def _name(record: object) -> str:
    return type(record).__name__.lower()
