"""Reading a recording message by message, also one whose recorder was killed.

A file without an end is read up to the first record that is not whole. A file with an end has to
have all that the end says: the checksums of the data and of the summary, if it has some (earlier
versions and most other programs write 0), the numbers of chunks and messages, and the
same schemas and channels. Messages of a connection are numbered, and a chunk is followed by its
index, so that a missing chunk is noticed in a file without an end, too.
"""

from __future__ import annotations

import dataclasses
import os
import struct
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from mcap.opcode import Opcode
from mcap.writer import MCAP0_MAGIC

from dm_env_rpc_client import arguments
from dm_env_rpc_client.errors import RecordingError
from dm_env_rpc_client.recording.files import layout
from dm_env_rpc_client.recording.files.container import ANSWERS, PROFILE, REQUESTS
from dm_env_rpc_client.recording.files.file_budget import FileBudget
from dm_env_rpc_client.recording.files.layout import Damage, RecordFile
from dm_env_rpc_client.recording.files.tally import Tally
from dm_env_rpc_client.tensors.limits import DEFAULT, Limits, shortened

_MESSAGE = struct.Struct("<HIQQ")

_ENVELOPES = {
    b"dm_env_rpc.v1.EnvironmentRequest": REQUESTS,
    b"dm_env_rpc.v1.EnvironmentResponse": ANSWERS,
}
_NAME_BYTES = 64

_CHANNEL_BYTES = 1 << 16
"""The largest Channel record that is read; that of a connection has a few hundred bytes."""

_NUMBER_DIGITS = 9
"""The most digits that the number of a connection has."""

_CONNECTION_BYTES = 2000
"""What a connection takes in memory beside its metadata."""


@dataclasses.dataclass(frozen=True)
class RecordedConnection:
    """A connection of a recording.

    Attributes:
      number: its number in the recording, from 1.
      address: of its server.
      metadata: what the recording says about it, such as the version of this package and the
        transport.
    """

    number: int
    address: str
    metadata: Mapping[str, str]


class Entry(NamedTuple):
    """A recorded message.

    Attributes:
      connection: the connection that it was sent or received on.
      is_request: whether it is an EnvironmentRequest, and not an EnvironmentResponse.
      sequence: its number among the requests or answers of the connection, from 1.
      nanoseconds: when it was sent or received, since the epoch.
      message: its bytes.
    """

    connection: RecordedConnection
    is_request: bool
    sequence: int
    nanoseconds: int
    message: bytes


def check_reading(path: str | os.PathLike[str], limits: Limits) -> None:
    """Raises SpecError if what is to be read, or its limits, are of another type."""
    arguments.path("path", path)
    arguments.instance("limits", limits, Limits, "a Limits")


class Scan:
    """Reads the messages of a recording in the order in which they were recorded.

    Args:
      path: the file.
      limits: what a message and a chunk may take; see `Limits`.

    Attributes:
      connections: those that were read so far, by number.
      is_complete: whether the end of the file was read; False if the recorder was killed, or still
        records.
      limits: as the argument.
      budget: what reading the file may still take.

    Raises:
      SpecError: an argument is of another type.
    """

    def __init__(self, path: str | os.PathLike[str], limits: Limits = DEFAULT):
        check_reading(path, limits)
        self.path = Path(path)
        self.limits = limits
        self._begin(0)

    def __iter__(self) -> Iterator[Entry]:
        """Reads the file.

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
                    raise RecordingError(f"{self.path} is not a recording: it is no MCAP file")
                reading = RecordFile(file, found.st_size, self.budget)
                try:
                    yield from self._read(reading)
                except Damage as error:
                    # A recorder that goes on with its file cuts off the end that was there.
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
        self.connections: dict[int, RecordedConnection] = {}
        self.is_complete = False
        self.budget = FileBudget(self.path, size, self.limits)
        self._tally = Tally()
        self._profile = ""
        # The direction of the messages that a schema describes, and which channels have which
        # connection; None for those of other programs.
        self._schemas: dict[int, str | None] = {}
        self._channels: dict[int, tuple[RecordedConnection, bool] | None] = {}
        self._last: dict[int, int] = {}

    def _read(self, reading: RecordFile) -> Iterator[Entry]:
        """Yields the messages, and compares the end, if there is one, with them."""
        header = reading.next()
        if header is None:
            return
        if header[0] != Opcode.HEADER:
            raise Damage("it does not begin with a header")
        self._profile = layout.text(layout.split(*header)[1])
        if (yield from self._read_data(reading)):
            self._read_summary(reading)

    def _read_data(self, reading: RecordFile) -> Generator[Entry, None, bool]:
        """Yields the messages; returns whether the end of the data was read."""
        while (found := reading.next()) is not None:
            opcode, content = found
            del found
            if opcode == Opcode.MESSAGE_INDEX:
                self._tally.check_index(content)
                continue
            self._tally.end_chunk()
            if opcode == Opcode.CHUNK:
                self._tally.begin_chunk()
                records = layout.records(layout.unpack(content, self.budget), self.budget)
                del content
                for inner, head, rest in records:
                    entry = self._take(inner, head, rest)
                    if entry is not None:
                        yield entry
                entry, rest = None, b""
            elif opcode == Opcode.MESSAGE:
                head, content = content[: _MESSAGE.size], content[_MESSAGE.size :]
                self.budget.check("message", len(content))
                entry = self._take(opcode, head, content)
                if entry is not None:
                    yield entry
            elif opcode == Opcode.DATA_END:
                self._tally.check_data(content, reading.checksum)
                reading.begin_summary()
                return True
            elif opcode in (Opcode.HEADER, Opcode.FOOTER, Opcode.STATISTICS):
                raise Damage(f"a {Opcode(opcode).name.lower()} is among the messages")
            else:
                self._take(opcode, b"", content)
        return False

    def _read_summary(self, reading: RecordFile) -> None:
        start: int | None = None
        while (found := reading.next()) is not None:
            opcode, content = found
            if opcode == Opcode.FOOTER:
                self._tally.check_end(content, reading.checksum, start)
                self.is_complete = reading.ends()
                return
            start = start or reading.place
            if opcode == Opcode.STATISTICS:
                self._tally.set_statistics(content)
            elif opcode in (Opcode.SCHEMA, Opcode.CHANNEL):
                self._tally.define(opcode, content)
            elif opcode in layout.USED:
                raise Damage(f"a {Opcode(opcode).name.lower()} is after the end of the messages")

    def _take(self, opcode: int, head: bytes, rest: bytes) -> Entry | None:
        """Returns a message, or takes a schema or channel; others are skipped."""
        if opcode != Opcode.MESSAGE:
            if opcode in (Opcode.SCHEMA, Opcode.CHANNEL):
                self._define(opcode, rest)
            return None
        number, sequence, nanoseconds, _ = _MESSAGE.unpack(head)
        self._tally.add_message(number)
        try:
            channel = self._channels[number]
        except KeyError:
            raise Damage(
                f"a message is of channel {number}, which the file does not have"
            ) from None
        if channel is None:
            return None
        connection, is_request = channel
        self._check_sequence(number, sequence)
        return Entry(connection, is_request, sequence, nanoseconds, rest)

    def _define(self, opcode: int, content: bytes) -> None:
        """Takes a schema or a channel."""
        if opcode == Opcode.CHANNEL and len(content) > _CHANNEL_BYTES:
            raise Damage(f"a channel has {len(content)} bytes; expected at most {_CHANNEL_BYTES}")
        fields = layout.split(opcode, content)
        number = int.from_bytes(fields[0][:2], "little")
        if not self._tally.define(opcode, content):
            return
        if opcode == Opcode.SCHEMA:
            self._schemas[number] = _ENVELOPES.get(bytes(fields[1][:_NAME_BYTES]))
            return
        schema = int.from_bytes(fields[0][2:], "little")
        if schema and schema not in self._schemas:
            raise Damage(f"channel {number} has schema {schema}, which the file does not have")
        direction = self._schemas.get(schema)
        metadata = {} if direction is None else layout.pairs(fields[3])
        self._channels[number] = None
        if "connection" in metadata:
            if metadata.pop("direction", direction) != direction:
                raise Damage(f"channel {number} has the schema of {direction} and is not theirs")
            self.budget.hold(_CONNECTION_BYTES + 2 * len(content))
            connection = self._connection(metadata)
            self._channels[number] = (connection, direction == REQUESTS)
        elif self._profile == PROFILE:
            raise Damage(f"channel {number} does not say which connection it is of")

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

    def _check_sequence(self, channel: int, sequence: int) -> None:
        """Raises Damage if messages before this one are missing.

        The first one that there is may have any number: other programs cut parts out of a file, and
        number messages with 0 if they do not number them.
        """
        last = self._last.get(channel)
        self._last[channel] = sequence
        if last is not None and sequence not in (0, (last + 1) & 0xFFFFFFFF):
            connected = self._channels[channel]
            assert connected is not None, "only messages of connections are numbered"
            kind = "request" if connected[1] else "answer"
            raise Damage(
                f"{kind} {sequence} of connection {connected[0].number} follows {kind} {last}"
            )
