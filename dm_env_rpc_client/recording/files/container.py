"""The file of a recording, for writing: MCAP with the schemas of the protocol inside.

The records are those of the package `mcap`. Only messages and their indexes, which are most of a
file, are packed here: `mcap.writer` takes 4 microseconds of the interpreter for each message, which
steps would wait for, and this takes 0.7.

Chunks are handed to the operating system whole, and nothing that was written is changed. So if the
process is killed, the file is readable up to its last whole chunk. The end of the file, with the
index, is written when no connection is recorded any more. If another one follows, the end is cut
off and written again later, if the path still names the file that was finished: a renamed, replaced
or changed file may be another program's, and is left as it is.

The end has checksums of all that is outside chunks, too: that of the data in DataEnd and that of
the summary in the footer.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lz4.frame
import zstandard
from google.protobuf import descriptor_pb2
from google.protobuf.message import Message
from mcap import records
from mcap.data_stream import RecordBuilder
from mcap.opcode import Opcode
from mcap.well_known import MessageEncoding, SchemaEncoding
from mcap.writer import LIBRARY_IDENTIFIER, MCAP0_MAGIC

from dm_env_rpc_client.errors import RecordingError
from dm_env_rpc_client.protocol.envelopes import EnvironmentRequest, EnvironmentResponse
from dm_env_rpc_client.version import __version__

PROFILE = "dm_env_rpc"
"""The profile in the header of a recording."""

REQUESTS, ANSWERS = "requests", "answers"
"""The channels of connection 1 are "/connection-1/requests" and "/connection-1/answers"."""

COMPRESSIONS: Mapping[str, Callable[[bytes], bytes]] = {
    "zstd": zstandard.compress,
    "lz4": lz4.frame.compress,
    "none": lambda data: data,
}
"""What compresses a chunk, by name."""

_CHUNK_BYTES = 1 << 20
"""A chunk ends when it is larger than this, before compression."""

MAX_CONNECTIONS = 0xFFFF // 2
"""In one file. The MCAP specification: the id of a channel has 16 bits."""

_ENVELOPES: Mapping[str, type[Message]] = {
    REQUESTS: EnvironmentRequest,
    ANSWERS: EnvironmentResponse,
}

# The MCAP specification, Message and Message Index: opcode and length of the record, and its
# fields up to the bytes of the message, or to the times and places of the messages.
_MESSAGE = struct.Struct("<BQHIQQ")
_MESSAGE_FIELDS = _MESSAGE.size - 9
_INDEX = struct.Struct("<BQHI")
_INDEX_FIELDS = _INDEX.size - 9
_FOOTER = struct.Struct("<BQQQ")
_FOOTER_FIELDS = _FOOTER.size - 9 + 4


class Container:
    """A new recording. One thread at a time uses it.

    Args:
      path: where; nothing may be there.
      compression: of chunks; see `COMPRESSIONS`.

    Attributes:
      output: what it is written to.

    Raises:
      RecordingError: there is a file, or it cannot be written.
    """

    def __init__(self, path: Path, compression: str):
        self.path = path
        self._compression = compression
        self._channels: list[records.Channel] = []
        # The index of the chunks as it will be written: there is one for every 0.1 s of a session.
        self._chunk_index = bytearray()
        self._chunk_count = 0
        self._counts: dict[int, int] = {}
        self._times: list[int] = []
        self._begin_chunk()
        begin = RecordBuilder()
        begin.write(MCAP0_MAGIC)
        library = f"dm-env-rpc-client {__version__}; {LIBRARY_IDENTIFIER}"
        records.Header(PROFILE, library).write(begin)
        self._schemas = [
            records.Schema(
                id=number,
                name=envelope.DESCRIPTOR.full_name,
                encoding=SchemaEncoding.Protobuf,
                data=_file_descriptors(envelope),
            )
            for number, envelope in enumerate(_ENVELOPES.values(), 1)
        ]
        for schema in self._schemas:
            schema.write(begin)
        try:
            self.output = _Output(path)
            self.output.write(begin.end())
        except FileExistsError as error:
            raise RecordingError(
                f"cannot record to {path}: there is a file already, which is not overwritten; "
                "remove it or choose another name"
            ) from error
        except OSError as error:
            raise RecordingError(f"cannot record to {path}: {error}") from error

    def add_channel(self, connection: int, direction: str, metadata: Mapping[str, str]) -> int:
        """Adds a channel for one direction of a connection and returns its id."""
        channel = records.Channel(
            id=len(self._channels) + 1,
            topic=f"/connection-{connection}/{direction}",
            message_encoding=MessageEncoding.Protobuf,
            metadata=dict(metadata),
            schema_id=list(_ENVELOPES).index(direction) + 1,
        )
        self._channels.append(channel)
        self._counts[channel.id] = 0
        built = RecordBuilder()
        channel.write(built)
        self._parts.append(built.end())
        self._chunk_bytes += len(self._parts[-1])
        return channel.id

    def add(self, channel: int, sequence: int, nanoseconds: int, message: bytes) -> None:
        """Adds a message to the current chunk."""
        places = self._places.get(channel)
        if places is None:
            places = self._places[channel] = []
        places.append(nanoseconds)
        places.append(self._chunk_bytes)
        self._parts.append(
            _MESSAGE.pack(
                Opcode.MESSAGE,
                _MESSAGE_FIELDS + len(message),
                channel,
                sequence & 0xFFFFFFFF,
                nanoseconds,
                nanoseconds,
            )
        )
        self._parts.append(message)
        self._chunk_bytes += _MESSAGE.size + len(message)
        if self._chunk_bytes > _CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Ends the chunk, if it has anything, and hands it to the operating system."""
        if not self._parts:
            return
        self.output.reopen()
        data = b"".join(self._parts)
        times = [time for places in self._places.values() for time in places[::2]] or [0]
        compressed = COMPRESSIONS[self._compression](data)
        compression = "" if self._compression == "none" else self._compression
        start = self.output.position
        built = RecordBuilder()
        records.Chunk(
            compression=compression,
            data=compressed,
            message_start_time=min(times),
            message_end_time=max(times),
            uncompressed_crc=zlib.crc32(data),
            uncompressed_size=len(data),
        ).write(built)
        chunk_length = built.count
        index_places = {}
        for channel, places in self._places.items():
            index_places[channel] = start + built.count
            fields = _INDEX_FIELDS + 8 * len(places)
            built.write(_INDEX.pack(Opcode.MESSAGE_INDEX, fields, channel, 8 * len(places)))
            built.write(struct.pack(f"<{len(places)}Q", *places))
            self._counts[channel] += len(places) // 2
        self._times = [min([*self._times, *times]), max([*self._times, *times])]
        index = RecordBuilder()
        records.ChunkIndex(
            chunk_start_offset=start,
            chunk_length=chunk_length,
            message_start_time=min(times),
            message_end_time=max(times),
            message_index_offsets=index_places,
            message_index_length=built.count - chunk_length,
            compression=compression,
            compressed_size=len(compressed),
            uncompressed_size=len(data),
        ).write(index)
        self._chunk_index += index.end()
        self._chunk_count += 1
        self._begin_chunk()
        self.output.write(built.end())

    def finish(self) -> None:
        """Writes the index and the end of the file, and closes it, until something is added."""
        self.flush()
        if self.output.is_finished:
            return
        built = RecordBuilder()
        records.DataEnd(data_section_crc=self.output.checksum).write(built)
        summary_start = self.output.position + built.count
        first, last = self._times or (0, 0)
        statistics = records.Statistics(
            message_count=sum(self._counts.values()),
            schema_count=len(self._schemas),
            channel_count=len(self._channels),
            attachment_count=0,
            metadata_count=0,
            chunk_count=self._chunk_count,
            message_start_time=first,
            message_end_time=last,
            channel_message_counts=self._counts,
        )
        summary = RecordBuilder()
        for record in (*self._schemas, *self._channels, statistics):
            record.write(summary)
        summary.write(self._chunk_index)
        # The MCAP specification: the checksum covers the summary, and the footer up to itself.
        summary.write(_FOOTER.pack(Opcode.FOOTER, _FOOTER_FIELDS, summary_start, 0))
        content = summary.end()
        built.write(content)
        built.write(struct.pack("<I", zlib.crc32(content)))
        built.write(MCAP0_MAGIC)
        self.output.finish(built.end())

    def _begin_chunk(self) -> None:
        self._parts: list[bytes] = []
        self._chunk_bytes = 0
        # For each channel the time and the place of each message, one after the other.
        self._places: dict[int, list[int]] = {}


class _Output:
    """The file, without a buffer, which a forked child might write once more.

    Args:
      path: where; nothing may be there.

    Attributes:
      position: how much was written.
      checksum: of all that was written.
      is_finished: whether it has its end, and is closed.
    """

    def __init__(self, path: Path):
        self.position = 0
        self.checksum = 0
        self._path = path.absolute()
        self.is_finished = False
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        self._descriptor = os.open(path, flags, 0o666)
        self._identity = _identity(os.fstat(self._descriptor))

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left) :]
        self.position += len(data)
        self.checksum = zlib.crc32(data, self.checksum)

    def finish(self, end: bytes) -> None:
        """Writes the end of the file, which `reopen` cuts off again, and closes it."""
        checksum = self.checksum
        self.write(end)
        self.close()
        self._end, self.checksum, self.is_finished = end, checksum, True

    def close(self) -> None:
        """Closes the file as it is; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def is_in_place(self) -> bool:
        """Whether its path still names this file, and not one that has taken its place."""
        try:
            return _identity(os.stat(self._path)) == self._identity
        except OSError:
            return False

    def remove(self) -> None:
        """Removes the file, if it is in its place."""
        if self.is_in_place():
            with contextlib.suppress(OSError):
                os.remove(self._path)

    def check(self) -> None:
        """Raises OSError if it is finished, and the path does not name it any more."""
        if self.is_finished:
            os.close(self._opened())

    def reopen(self) -> None:
        """Opens a finished file again and cuts off its end."""
        if not self.is_finished:
            return
        descriptor = self._opened()
        self.position -= len(self._end)
        os.ftruncate(descriptor, self.position)
        os.lseek(descriptor, self.position, os.SEEK_SET)
        self._descriptor = descriptor
        self.is_finished = False

    def _opened(self) -> int:
        """Returns a descriptor of the finished file.

        The inode of a file that was removed may be that of another one later, so that the end is
        compared as well, which has the checksum of all the rest.
        """
        flags = os.O_RDWR | os.O_NONBLOCK
        descriptor = os.open(self._path, flags)
        try:
            found = os.fstat(descriptor)
            start = self.position - len(self._end)
            if (
                _identity(found) != self._identity
                or found.st_size != self.position
                or os.pread(descriptor, len(self._end), start) != self._end
            ):
                raise FileExistsError(
                    f"{self._path} is not the file any more that this recorder finished; it is "
                    "left as it is, and further connections need a Recorder with another path"
                )
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _file_descriptors(message: type[Message]) -> bytes:
    """Returns a FileDescriptorSet with the file of a message and all that it imports."""
    found = descriptor_pb2.FileDescriptorSet()
    seen: set[str] = set()

    def add(file: Any) -> None:
        if file.name not in seen:
            seen.add(file.name)
            for imported in file.dependencies:
                add(imported)
            file.CopyToProto(found.file.add())

    add(message.DESCRIPTOR.file)
    return found.SerializeToString()
