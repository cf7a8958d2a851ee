"""The writer of a recording file, which is an MCAP file with the protocol's schemas.

`mcap.records` writes the records. Only messages and their indexes, which make up most of a file,
are packed by this module itself. `mcap.writer` takes 4 microseconds of interpreter time per
message, during which steps wait, whereas this module takes 0.7.

Each chunk is written as soon as it ends, and written bytes never change. If the process is killed,
the file is therefore readable up to its last complete chunk. The end of the file, with the index,
is written once no connection is being recorded. A later connection removes the end of the
file again, provided that the path still refers to the finished file. A renamed, replaced or
changed file may belong to another program and is left alone. The checksums at the end of the file
cover everything outside chunks: DataEnd covers the data, and the footer covers the summary.
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
from mcap.records import McapRecord
from mcap.well_known import MessageEncoding, SchemaEncoding
from mcap.writer import LIBRARY_IDENTIFIER, MCAP0_MAGIC

from dm_env_rpc_client.errors import RecordingError
from dm_env_rpc_client.protocol.envelopes import EnvironmentRequest, EnvironmentResponse
from dm_env_rpc_client.version import __version__

PROFILE = "dm_env_rpc"
"""The profile in the header of a recording."""

REQUESTS, ANSWERS = "requests", "answers"
"""The last parts of channel names such as "/connection-1/requests" and "/connection-1/answers"."""

ENVELOPES: Mapping[str, type[Message]] = {
    REQUESTS: EnvironmentRequest,
    ANSWERS: EnvironmentResponse,
}
"""The message type for each direction, in the order of the schemas."""

COMPRESSIONS: Mapping[str, Callable[[bytes], bytes]] = {
    "zstd": zstandard.compress,
    "lz4": lz4.frame.compress,
    "none": lambda data: data,
}
"""The compression functions for chunks, by name."""

_CHUNK_BYTES = 1 << 20
"""The uncompressed size, in bytes, beyond which a chunk ends."""

MAX_CONNECTIONS = 0xFFFF // 2
"""The maximum number of connections in one file, because MCAP channel ids have 16 bits."""

PREFIX = struct.Struct("<BQ")
"""The prefix of a record: opcode and length ("Records" in the MCAP specification)."""

MESSAGE = struct.Struct("<BQHIQQ")
"""The prefix of a Message record, and the fields that precede its contents."""

MESSAGE_FIELDS = MESSAGE.size - PREFIX.size

# The prefix of a Message Index record and its fields before the times and places of messages.
_INDEX = struct.Struct("<BQHI")
_INDEX_FIELDS = _INDEX.size - PREFIX.size


class Container:
    """A writer for a new recording; only one thread at a time may use it.

    Args:
      path: the path of the file, which must not exist.
      compression: the compression of chunks; see `COMPRESSIONS`.

    Attributes:
      output: the file object to write to.

    Raises:
      RecordingError: the file already exists or cannot be written.
    """

    def __init__(self, path: Path, compression: str):
        self.path = path
        self._compression = compression
        self._statistics = records.Statistics(
            message_count=0,
            schema_count=len(ENVELOPES),
            channel_count=0,
            attachment_count=0,
            metadata_count=0,
            chunk_count=0,
            message_start_time=0,
            message_end_time=0,
            channel_message_counts={},
        )
        schemas = [
            records.Schema(
                id=number,
                name=envelope.DESCRIPTOR.full_name,
                encoding=SchemaEncoding.Protobuf,
                data=_file_descriptors(envelope),
            )
            for number, envelope in enumerate(ENVELOPES.values(), 1)
        ]
        # Schemas, channels and the chunk index, kept as bytes until the end because a session adds
        # a chunk every 0.1 s.
        self._definitions = bytearray(built(*schemas))
        self._chunk_index = bytearray()
        self._begin_chunk()
        library = f"dm-env-rpc-client {__version__}; {LIBRARY_IDENTIFIER}"
        try:
            self.output = _Output(path)
            header = records.Header(PROFILE, library)
            self.output.write(MCAP0_MAGIC + built(header) + self._definitions)
        except FileExistsError as error:
            raise RecordingError(
                f"cannot record to {path}: the file exists and will not be overwritten; "
                "remove it or choose another name"
            ) from error
        except OSError as error:
            raise RecordingError(f"cannot record to {path}: {error}") from error

    def add_channel(self, connection: int, direction: str, metadata: Mapping[str, str]) -> int:
        """Add a channel for one direction of a connection and return its id."""
        self._statistics.channel_count += 1
        channel = records.Channel(
            id=self._statistics.channel_count,
            topic=f"/connection-{connection}/{direction}",
            message_encoding=MessageEncoding.Protobuf,
            metadata=dict(metadata),
            schema_id=list(ENVELOPES).index(direction) + 1,
        )
        self._parts.append(built(channel))
        self._definitions += self._parts[-1]
        self._chunk_bytes += len(self._parts[-1])
        return channel.id

    def add(self, channel: int, sequence: int, nanoseconds: int, message: bytes) -> None:
        """Add a message to the current chunk."""
        places = self._places.get(channel)
        if places is None:
            places = self._places[channel] = []
        places.append(nanoseconds)
        places.append(self._chunk_bytes)
        self._parts.append(
            MESSAGE.pack(
                Opcode.MESSAGE,
                MESSAGE_FIELDS + len(message),
                channel,
                sequence & 0xFFFFFFFF,
                nanoseconds,
                nanoseconds,
            )
        )
        self._parts.append(message)
        self._chunk_bytes += MESSAGE.size + len(message)
        if self._chunk_bytes > _CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """End the chunk, unless it is empty, and hand it to the operating system."""
        if not self._parts:
            return
        self.output.reopen()
        data = b"".join(self._parts)
        times = [time for places in self._places.values() for time in places[::2]] or [0]
        chunk = records.Chunk(
            compression="" if self._compression == "none" else self._compression,
            data=COMPRESSIONS[self._compression](data),
            message_start_time=min(times),
            message_end_time=max(times),
            uncompressed_crc=zlib.crc32(data),
            uncompressed_size=len(data),
        )
        index = records.ChunkIndex(
            chunk_start_offset=self.output.position,
            chunk_length=0,
            message_start_time=chunk.message_start_time,
            message_end_time=chunk.message_end_time,
            message_index_offsets={},
            message_index_length=0,
            compression=chunk.compression,
            compressed_size=len(chunk.data),
            uncompressed_size=len(data),
        )
        builder = RecordBuilder()
        chunk.write(builder)
        index.chunk_length = builder.count
        total = self._statistics
        for channel, places in self._places.items():
            index.message_index_offsets[channel] = index.chunk_start_offset + builder.count
            size = 8 * len(places)
            builder.write(_INDEX.pack(Opcode.MESSAGE_INDEX, _INDEX_FIELDS + size, channel, size))
            builder.write(struct.pack(f"<{len(places)}Q", *places))
            counts = total.channel_message_counts
            counts[channel] = counts.get(channel, 0) + len(places) // 2
            total.message_count += len(places) // 2
        index.message_index_length = builder.count - index.chunk_length
        self._chunk_index += built(index)
        first = total.message_start_time if total.chunk_count else chunk.message_start_time
        total.message_start_time = min(first, chunk.message_start_time)
        total.message_end_time = max(total.message_end_time, chunk.message_end_time)
        total.chunk_count += 1
        self._begin_chunk()
        self.output.write(builder.end())

    def finish(self) -> None:
        """Write the index and the end of the file, and close the file until the next message."""
        self.flush()
        if self.output.is_finished:
            return
        end = built(records.DataEnd(self.output.checksum))
        summary = self._definitions + built(self._statistics) + self._chunk_index
        footer = records.Footer(self.output.position + len(end), 0, 0)
        # By the MCAP specification, it covers the summary and the footer's fields before it.
        footer.summary_crc = zlib.crc32(built(footer)[:-4], zlib.crc32(summary))
        self.output.finish(end + summary + built(footer) + MCAP0_MAGIC)

    def _begin_chunk(self) -> None:
        self._parts: list[bytes] = []
        self._chunk_bytes = 0
        # Alternating times and places of the messages, by channel.
        self._places: dict[int, list[int]] = {}


class _Output:
    """An unbuffered output file, because a forked child could write buffered data twice.

    Args:
      path: the path of the file, which must not exist.

    Attributes:
      position: the number of bytes written.
      checksum: the checksum of the bytes written.
      is_finished: whether the file is complete and closed.
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
        """Write the end of the file, which `reopen` can remove, and close the file."""
        checksum = self.checksum
        self.write(end)
        self.close()
        self._end, self.checksum, self.is_finished = end, checksum, True

    def close(self) -> None:
        """Close the file without completing it; repeated calls have no effect."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def is_in_place(self) -> bool:
        """Whether the path still refers to this file rather than a replacement."""
        try:
            return _identity(os.stat(self._path)) == self._identity
        except OSError:
            return False

    def remove(self) -> None:
        """Remove the file if its path still refers to it."""
        if self.is_in_place():
            with contextlib.suppress(OSError):
                os.remove(self._path)

    def check(self) -> None:
        """Raise OSError if the file is finished and the path no longer refers to it."""
        if self.is_finished:
            os.close(self._opened())

    def reopen(self) -> None:
        """Reopen a finished file and remove its end."""
        if not self.is_finished:
            return
        descriptor = self._opened()
        self.position -= len(self._end)
        os.ftruncate(descriptor, self.position)
        os.lseek(descriptor, self.position, os.SEEK_SET)
        self._descriptor = descriptor
        self.is_finished = False

    def _opened(self) -> int:
        """Open the finished file and return its descriptor.

        The inode of a removed file may be reused, so the end of the file, which contains checksums
        of the rest, is compared as well.
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
                    f"{self._path} is no longer the file that this recorder finished, so it is "
                    "left unchanged; record further connections to another file"
                )
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def built(*given: McapRecord) -> bytes:
    """Return the given records as bytes."""
    builder = RecordBuilder()
    for record in given:
        record.write(builder)
    return bytes(builder.end())


def _file_descriptors(message: type[Message]) -> bytes:
    """Return a FileDescriptorSet of the file that defines a message and of its imports."""
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
