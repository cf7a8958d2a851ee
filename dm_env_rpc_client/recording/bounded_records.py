"""A reader of MCAP records that does not trust their stated sizes.

`mcap.records` parses records. The readers in `mcap` allocate as much memory as a length field or
the compressed data demand, and they accept a truncated record as complete. This module compares
every size with the available bytes and the limits before allocating memory. The stated length of a
record must match that of its fields, even if the record is truncated, so a corrupted length is not
mistaken for truncation. This module parses the messages in chunks itself, because `mcap` takes
several microseconds per message.
"""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias

import lz4.frame
import zstandard
from mcap import records
from mcap.data_stream import ReadDataStream
from mcap.exceptions import EndOfFile
from mcap.opcode import Opcode
from mcap.records import McapRecord
from mcap.writer import MCAP0_MAGIC

from dm_env_rpc_client.errors import RecordingError
from dm_env_rpc_client.recording.mcap_file import MESSAGE, MESSAGE_FIELDS, PREFIX
from dm_env_rpc_client.tensors.memory_limits import Limits

_FOOTER_BYTES = 20
_TIME_AND_PLACE_BYTES = 16
_BLOCK = 1 << 16
_OF_MESSAGE = int(Opcode.MESSAGE)

_RECORDS = 1 << 18
"""The maximum number of records in a small file. Larger files may contain more records."""

_RECORD_BYTES = 2
"""The number of bytes that a file must have for each additional record. An empty message takes at
least 5 bytes (5.3 with zstd at level 19), because its number and time differ from those of other
messages."""

_HELD = 4
"""The memory limit for a file's TimeSteps, as a multiple of its size. The limit is never less than
`Limits.chunk_bytes`."""


class Damage(Exception):  # noqa: N818 - the text of a RecordingError, which the reader raises.
    """Damage found in a recording file."""


class FileBudget:
    """The remaining budget for reading one file; see `Limits.chunk_bytes`.

    Args:
      path: the path of the file.
      size: the size of the file, in bytes.
      limits: the limits for the file.
    """

    def __init__(self, path: Path, size: int, limits: Limits):
        self._path = path
        self._most_bytes = {"chunk": limits.chunk_bytes, "message": limits.message_bytes}
        self._records = self._most_records = _RECORDS + size // _RECORD_BYTES
        self._left = self._most_held = max(limits.chunk_bytes, _HELD * size)

    def check(self, kind: Literal["chunk", "message"], size: int) -> None:
        """Raise RecordingError if a chunk, a message or another record is too large."""
        most = self._most_bytes[kind]
        if size > most:
            raise self._error(f"a {kind} has {size} bytes; at most {most} are allowed", kind)

    def take_record(self) -> None:
        """Count a record, or raise RecordingError if the file has too many for its size."""
        self._records -= 1
        if self._records < 0:
            raise RecordingError(
                f"cannot read {self._path}: it has more than {self._most_records} records, which "
                "is too many for its size"
            )

    def hold(self, size: int) -> None:
        """Charge retained memory to the budget, or raise RecordingError if it is used up."""
        self._left -= size
        if self._left < 0:
            raise self._error(
                f"the retained contents take more than {self._most_held} bytes; read the "
                "episodes one by one, or raise the limit",
                "chunk",
            )

    def release(self, size: int) -> None:
        """Return `size` bytes, charged earlier by `hold`, to the budget."""
        self._left += size

    def _error(self, text: str, kind: str) -> RecordingError:
        return RecordingError(f"cannot read {self._path}: {text} (Limits.{kind}_bytes)")


class _Source(ReadDataStream):
    """A source of records that enforces an end position and never returns partial reads.

    Args:
      stream: the stream to read from.
      end: the position that reads must not pass.

    Attributes:
      end: the position that reads must not pass.
      checksum_so_far: the checksum of the bytes read.
    """

    def __init__(self, stream: BinaryIO, end: int):
        super().__init__(stream)
        self.end = end
        self.checksum_so_far = 0

    def read(self, length: int) -> bytes:
        if not 0 <= length <= self.end - self.count:
            raise EndOfFile
        data = bytes(super().read(length))
        if len(data) < length:
            raise EndOfFile
        self.checksum_so_far = zlib.crc32(data, self.checksum_so_far)
        return data

    def skip(self, length: int) -> None:
        """Read and discard `length` bytes, block by block."""
        for left in range(length, 0, -_BLOCK):
            self.read(min(left, _BLOCK))


class IndexSize(NamedTuple):
    """The number of messages in a channel, according to the index of a chunk.

    Replaces `records.MessageIndex`, which takes eight times the memory of its record.
    """

    channel_id: int
    messages: float

    @classmethod
    def read(cls, source: _Source) -> IndexSize:
        """Read an index without keeping its entries."""
        channel, size = source.read2(), source.read4()
        source.skip(size)
        return cls(channel, size / _TIME_AND_PLACE_BYTES)


InChunk: TypeAlias = "tuple[int, int, int, bytes] | records.Schema | records.Channel"
"""A record in a chunk. A message is a tuple of channel, sequence, nanoseconds and bytes, because
an object for each message would be slower."""

# Records of other kinds are skipped.
_KINDS: Mapping[int, Any] = {
    Opcode.HEADER: records.Header,
    Opcode.FOOTER: records.Footer,
    Opcode.SCHEMA: records.Schema,
    Opcode.CHANNEL: records.Channel,
    Opcode.MESSAGE: records.Message,
    Opcode.CHUNK: records.Chunk,
    Opcode.MESSAGE_INDEX: IndexSize,
    Opcode.STATISTICS: records.Statistics,
    Opcode.DATA_END: records.DataEnd,
}

# Records that expand to many objects have tighter bounds. The channels of a connection take a few
# hundred bytes, Statistics ten bytes for each of up to 2**16 channels.
_MOST_BYTES: Mapping[int, int] = {Opcode.CHANNEL: 1 << 16, Opcode.STATISTICS: 1 << 20}


def _parsed(source: _Source, opcode: int, length: int) -> Any:
    """Read a record of a given length.

    Raises:
      Damage: the fields do not have the declared length, or the record is too large for its kind.
      EndOfFile: the source ends before the end of the fields.
    """
    begin = source.count
    most = _MOST_BYTES.get(opcode, length)
    if length > most:
        raise Damage(f"a {Opcode(opcode).name.lower()} has {length} bytes; expected at most {most}")
    kind = _KINDS[opcode]
    try:
        record = kind.read(source, *([length] if kind is records.Message else []))
    except UnicodeDecodeError as error:
        raise Damage(f"a string is not valid UTF-8: {error}") from error
    if source.count - begin != length:
        raise Damage(
            f"a record has a declared length of {length} bytes, but its fields take "
            f"{source.count - begin} bytes"
        )
    return record


class RecordFile:
    """The records outside the chunks of a file, except for those that readers do not need.

    Args:
      file: the file, positioned after its magic bytes.
      size: the size of the file, in bytes.
      budget: the budget for records.

    Attributes:
      checksum: the checksum of the bytes before the last record, starting at the beginning of the
        file or at the call of `begin_summary`.
      has_end: whether the file was completed.
    """

    def __init__(self, file: BinaryIO, size: int, budget: FileBudget):
        self._size = size - len(MCAP0_MAGIC)
        self._source = _Source(file, self._size)
        self._source.checksum_so_far = zlib.crc32(MCAP0_MAGIC)
        self._budget = budget
        self._place = 0
        self.checksum = 0
        # Either mark suffices, so that one changed bit does not look like truncation.
        length = PREFIX.size + _FOOTER_BYTES + len(MCAP0_MAGIC)
        end = os.pread(file.fileno(), length, size - length) if length < size else b""
        footer = PREFIX.pack(Opcode.FOOTER, _FOOTER_BYTES)
        self.has_end = end.startswith(footer) or end.endswith(MCAP0_MAGIC)

    @property
    def place(self) -> int:
        """The position of the last record in the file."""
        return self._place + len(MCAP0_MAGIC)

    def next(self) -> McapRecord | IndexSize | None:
        """Return the next record, or None at the end of an incomplete file.

        Raises:
          RecordingError: the record exceeds the budget.
          Damage: the record is invalid, or cut off although the file was completed.
        """
        source = self._source
        while True:
            self._budget.take_record()
            self._place, self.checksum = source.count, source.checksum_so_far
            source.end, end = self._size, self._size + 1
            try:
                opcode, length = source.read1(), source.read8()
                end = source.count + length
                source.end = min(end, self._size)
                size = source.end - source.count
                if opcode == _OF_MESSAGE:
                    self._budget.check("message", size - MESSAGE_FIELDS)
                if opcode in _KINDS:
                    self._budget.check("chunk", size)
                    record: McapRecord | IndexSize = _parsed(source, opcode, length)
                    return record
                source.skip(length)
            except EndOfFile:
                if end <= self._size:
                    raise Damage(
                        f"the fields of a record extend beyond its {length} bytes"
                    ) from None
                if self.has_end:
                    raise Damage("the file ends in the middle of a record") from None
                return None

    def begin_summary(self) -> None:
        """Restart the checksum so that it covers only the bytes after the last record."""
        self._source.checksum_so_far = 0

    def ends(self) -> bool:
        """Return True if exactly the magic bytes follow, or False if they are cut off.

        Raises:
          Damage: other bytes follow.
        """
        self._source.end = self._size
        found = self._source.read(min(self._size - self._source.count, len(MCAP0_MAGIC) + 1))
        if found != MCAP0_MAGIC and (self.has_end or not MCAP0_MAGIC.startswith(found)):
            raise Damage("the footer is not followed by exactly the MCAP magic bytes")
        return found == MCAP0_MAGIC


def records_of_chunk(chunk: records.Chunk, budget: FileBudget) -> Iterator[InChunk]:
    """Yield the messages, schemas and channels of a chunk.

    Large parts are freed once read, so that a large message and its chunk are not in memory at the
    same time.

    Raises:
      RecordingError: the chunk or a message exceeds the budget.
      Damage: the chunk cannot be decompressed, its checksum is wrong, or a record is damaged.
    """
    view = memoryview(_decompressed(chunk, budget))
    del chunk
    place = 0
    while place < len(view):
        budget.take_record()
        if len(view) - place < PREFIX.size:
            raise Damage("a record in a chunk is cut off")
        opcode, length = PREFIX.unpack_from(view, place)
        begin = place + (MESSAGE.size if opcode == _OF_MESSAGE else PREFIX.size)
        end = place + PREFIX.size + length
        if not begin <= end <= len(view):
            raise Damage(f"a record in a chunk has an invalid length of {length} bytes")
        found: InChunk | None = None
        if opcode == _OF_MESSAGE:
            budget.check("message", end - begin)
            _, _, channel, sequence, nanoseconds, _ = MESSAGE.unpack_from(view, place)
            found = channel, sequence, nanoseconds, bytes(view[begin:end])
        elif opcode in (Opcode.SCHEMA, Opcode.CHANNEL):
            try:
                found = _parsed(_Source(io.BytesIO(view[begin:end]), length), opcode, length)
            except EndOfFile:
                raise Damage(f"the fields of a record extend beyond its {length} bytes") from None
        place = end
        if length > _BLOCK and 2 * place > len(view):
            view, place = memoryview(bytes(view[place:])), 0
        if found is not None:
            yield found
        del found


def _decompressed(chunk: records.Chunk, budget: FileBudget) -> bytes:
    size = chunk.uncompressed_size
    budget.check("chunk", size)
    decompress = _DECOMPRESSIONS.get(chunk.compression)
    if decompress is None:
        raise Damage(f"a chunk uses the unsupported compression {chunk.compression[:8]!r}")
    try:
        found = decompress(chunk.data, size)
    except (zstandard.ZstdError, RuntimeError, ValueError) as error:
        raise Damage(f"a chunk cannot be decompressed: {error}") from error
    if len(found) != size:
        raise Damage(f"a chunk has {len(found)} bytes; expected {size}")
    if chunk.uncompressed_crc and zlib.crc32(found) != chunk.uncompressed_crc:
        raise Damage("the checksum of a chunk is wrong")
    return found


def _of_zstd(data: bytes, size: int) -> bytes:
    declared = zstandard.frame_content_size(data)
    if declared not in (-1, size):
        raise Damage(f"the compressed data declare {declared} bytes, but the chunk declares {size}")
    decompressor = zstandard.ZstdDecompressor()
    return decompressor.decompress(data, max_output_size=size, allow_extra_data=False)


def _of_lz4(data: bytes, size: int) -> bytes:
    # The additional byte reveals data that are longer than declared.
    decompressor = lz4.frame.LZ4FrameDecompressor()
    found: bytes = decompressor.decompress(data, max_length=size + 1)
    if not decompressor.eof or decompressor.unused_data:
        raise Damage("the compressed data do not have the length that the chunk declares")
    return found


_DECOMPRESSIONS: Mapping[str, Callable[[bytes, int], bytes]] = {
    "": lambda data, _: data,
    "zstd": _of_zstd,
    "lz4": _of_lz4,
}
