"""Reading a recording message by message, also one whose recorder was killed.

Records of an MCAP file are length-prefixed. A file without an end is read up to the first record
that is not whole. The scan is not that of `mcap.stream_reader`, which takes a record that is cut
off for a whole one; the contents of each whole record are read by `mcap`, and the checksum of each
chunk is compared. Messages of a connection are numbered, so that a missing chunk is noticed.
Chunks are decompressed here, into no more memory than they say: `mcap` asks for what the compressed
data say.
"""

from __future__ import annotations

import dataclasses
import io
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import lz4.frame
import zstandard
from mcap import records
from mcap.data_stream import ReadDataStream
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.stream_reader import CRCValidationError, breakup_chunk
from mcap.writer import MCAP0_MAGIC

from dm_env_rpc_client.errors import RecordingError
from dm_env_rpc_client.recording.container import REQUESTS

__all__ = ["MAX_CHUNK_BYTES", "Entry", "RecordedConnection", "Scan"]

MAX_CHUNK_BYTES = 1 << 30
"""The size of the largest chunk that is read, before and after decompression."""


def _of_zstd(data: bytes, size: int) -> bytes:
    said = zstandard.frame_content_size(data)
    if said > size:
        raise McapError(f"the compressed data say that they are {said} bytes")
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=size)


def _of_lz4(data: bytes, size: int) -> bytes:
    # One more than expected, so that longer data are not taken for these.
    found: bytes = lz4.frame.LZ4FrameDecompressor().decompress(data, max_length=size + 1)
    return found


_DECOMPRESSIONS: Mapping[str, Callable[[bytes, int], bytes]] = {
    "": lambda data, _: data,
    "zstd": _of_zstd,
    "lz4": _of_lz4,
}

_PREFIX = struct.Struct("<BQ")
_ENVELOPES = ("dm_env_rpc.v1.EnvironmentRequest", "dm_env_rpc.v1.EnvironmentResponse")


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


class Scan:
    """Reads the messages of a recording in the order in which they were recorded.

    Args:
      path: the file.

    Attributes:
      connections: those that were read so far, by number.
      is_complete: whether the end of the file was read; False if the recorder was killed, or still
        records.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.connections: dict[int, RecordedConnection] = {}
        self.is_complete = False
        self._channels: dict[int, tuple[RecordedConnection, bool]] = {}
        self._schemas: dict[int, str] = {}
        self._last: dict[int, int] = {}

    def __iter__(self) -> Iterator[Entry]:
        """Reads the file.

        Yields:
          Each message.

        Raises:
          RecordingError: the file cannot be read, is not a recording, or is damaged.
        """
        self._last.clear()
        try:
            with open(self.path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if file.read(len(MCAP0_MAGIC)) != MCAP0_MAGIC:
                    raise RecordingError(f"{self.path} is not a recording: it is no MCAP file")
                yield from self._read(file, size)
        except OSError as error:
            raise RecordingError(f"cannot read the recording {self.path}: {error}") from error

    def _read(self, file: BinaryIO, size: int) -> Iterator[Entry]:
        while True:
            place = file.tell()
            prefix = file.read(_PREFIX.size)
            if len(prefix) < _PREFIX.size:
                return
            opcode, length = _PREFIX.unpack(prefix)
            if length > size - file.tell():
                return  # It was not written whole.
            if opcode == Opcode.DATA_END:
                self.is_complete = True
                return
            if length > MAX_CHUNK_BYTES:
                raise RecordingError(
                    f"{self.path} has a record of {length} bytes at byte {place}; expected at most "
                    f"{MAX_CHUNK_BYTES}"
                )
            try:
                found = self._parse(opcode, file.read(length))
            except RecordingError:
                raise
            except CRCValidationError as error:
                raise RecordingError(
                    f"{self.path} is damaged: the checksum of the chunk at byte {place} is wrong"
                ) from error
            except Exception as error:  # Whatever mcap and the decompression raise.
                raise RecordingError(
                    f"{self.path} is damaged: the record at byte {place} cannot be read: {error!r}"
                ) from error
            for record in found:
                entry = self._entry(record)
                if entry is not None:
                    yield entry

    def _parse(self, opcode: int, content: bytes) -> list[records.McapRecord]:
        stream = ReadDataStream(io.BytesIO(content))
        if opcode == Opcode.CHUNK:
            chunk = records.Chunk.read(stream)
            size = chunk.uncompressed_size
            if size > MAX_CHUNK_BYTES:
                raise McapError(f"the chunk has {size} bytes")
            data = _DECOMPRESSIONS[chunk.compression](chunk.data, size)
            if len(data) != size:
                raise McapError(f"the chunk has {len(data)} bytes; expected {size}")
            return breakup_chunk(dataclasses.replace(chunk, compression="", data=data), True)
        if opcode == Opcode.SCHEMA:
            return [records.Schema.read(stream)]
        if opcode == Opcode.CHANNEL:
            return [records.Channel.read(stream)]
        if opcode == Opcode.MESSAGE:
            return [records.Message.read(stream, len(content))]
        return []

    def _entry(self, record: records.McapRecord) -> Entry | None:
        """Returns a message, or takes a schema or channel; other channels are skipped."""
        if isinstance(record, records.Schema):
            self._schemas[record.id] = record.name
        elif isinstance(record, records.Channel):
            number = record.metadata.get("connection", "")
            if self._schemas.get(record.schema_id) in _ENVELOPES and number.isdecimal():
                metadata = {
                    name: value for name, value in record.metadata.items() if name != "direction"
                }
                connection = self.connections.setdefault(
                    int(number),
                    RecordedConnection(int(number), metadata.get("address", ""), metadata),
                )
                is_request = record.metadata.get("direction") == REQUESTS
                self._channels[record.id] = (connection, is_request)
        elif isinstance(record, records.Message) and record.channel_id in self._channels:
            connection, is_request = self._channels[record.channel_id]
            self._check_sequence(record)
            return Entry(connection, is_request, record.sequence, record.log_time, record.data)
        return None

    def _check_sequence(self, message: records.Message) -> None:
        """Raises RecordingError if messages before this one are missing.

        The first one that there is may have any number: other programs cut parts out of a file, and
        number messages with 0 if they do not number them.
        """
        last = self._last.get(message.channel_id)
        self._last[message.channel_id] = message.sequence
        if last is not None and message.sequence not in (0, (last + 1) & 0xFFFFFFFF):
            connection, is_request = self._channels[message.channel_id]
            kind = "request" if is_request else "answer"
            raise RecordingError(
                f"{self.path} is damaged: {kind} {message.sequence} of connection "
                f"{connection.number} follows {kind} {last}"
            )
