"""The records of an MCAP file, taken apart without believing what they say about their sizes.

Nothing is allocated before its size was compared with what is there and with the limits. `mcap`
allocates what a length or the compressed data say, and takes a record that is cut off for a whole
one. A length stands twice, in a record and in its fields. Both have to agree, also in a record of
which only the beginning is there: a changed length does not look like a file that was cut off.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO, TypeAlias

import lz4.frame
import zstandard
from mcap.opcode import Opcode
from mcap.writer import MCAP0_MAGIC

from dm_env_rpc_client.recording.files.file_budget import FileBudget

Buffer: TypeAlias = bytes | memoryview

PREFIX = struct.Struct("<BQ")
_CHUNK = struct.Struct("<QQQI")
_FOOTER_BYTES = 20
_MESSAGE_BYTES = 22
_FOOTER = PREFIX.pack(Opcode.FOOTER, _FOOTER_BYTES)
_BLOCK = 1 << 16

# The MCAP specification, Records: how many bytes a record begins with, and of how many bytes the
# lengths of its further fields are. All others are skipped.
_LAYOUTS: Mapping[int, tuple[int, tuple[int, ...]]] = {
    Opcode.HEADER: (0, (4, 4)),
    Opcode.FOOTER: (_FOOTER_BYTES, ()),
    Opcode.SCHEMA: (2, (4, 4, 4)),
    Opcode.CHANNEL: (4, (4, 4, 4)),
    Opcode.MESSAGE: (_MESSAGE_BYTES, ()),
    Opcode.CHUNK: (_CHUNK.size, (4, 8)),
    Opcode.MESSAGE_INDEX: (2, (4,)),
    Opcode.STATISTICS: (42, (4,)),
    Opcode.DATA_END: (4, ()),
}

USED = frozenset(_LAYOUTS)
"""The records that are read."""


class Damage(Exception):  # noqa: N818 - the text of a RecordingError, which the reader raises.
    """What is wrong with a file."""


def _places(opcode: int, length: int, read: Callable[[int, int], Buffer]) -> list[tuple[int, int]]:
    """Returns where the fields of a record begin and end, as far as its beginning is there.

    Args:
      opcode: of the record.
      length: its size, as it says itself.
      read: returns the bytes between two places; fewer if they are not there.

    Raises:
      Damage: its fields have another size together.
    """
    end, widths = _LAYOUTS[opcode]
    places = [(0, end)]
    for width in widths:
        prefix = read(end, end + width) if end + width <= length else bytes(width)
        if len(prefix) < width:
            return places
        begin = end + width
        end = begin + int.from_bytes(prefix, "little")
        places.append((begin, end))
    if end != length and not (opcode == Opcode.MESSAGE and end < length):
        raise Damage(f"a record of {length} bytes has fields of {end} bytes")
    return places


def split(opcode: int, content: Buffer) -> list[memoryview]:
    """Returns the fields of a record: first those of a fixed size, all in one."""
    view = memoryview(content)
    places = _places(opcode, len(view), lambda begin, end: view[begin:end])
    return [view[begin:end] for begin, end in places]


def text(field: Buffer) -> str:
    """Returns a string of a record."""
    try:
        return str(field, "utf-8")
    except UnicodeDecodeError as error:
        raise Damage(f"a text is not UTF-8: {error}") from error


def pairs(field: memoryview) -> dict[str, str]:
    """Returns the texts of a field that is a map."""
    found: list[str] = []
    place = 0
    while place < len(field):
        begin = place + 4
        place = begin + int.from_bytes(field[place:begin], "little")
        if place > len(field):
            raise Damage("a text is longer than the map that it is in")
        found.append(text(field[begin:place]))
    if len(found) % 2:
        raise Damage("the last key of a map has no value")
    return dict(zip(found[::2], found[1::2], strict=True))


def _of_zstd(data: Buffer, size: int) -> bytes:
    declared = zstandard.frame_content_size(data)
    if declared not in (-1, size):
        raise Damage(
            f"the compressed data say that they are {declared} bytes, the chunk says {size}"
        )
    decompressor = zstandard.ZstdDecompressor()
    return decompressor.decompress(data, max_output_size=size, allow_extra_data=False)


def _of_lz4(data: Buffer, size: int) -> bytes:
    # One more than expected, so that longer data are not taken for these.
    decompressor = lz4.frame.LZ4FrameDecompressor()
    found: bytes = decompressor.decompress(data, max_length=size + 1)
    if not decompressor.eof or decompressor.unused_data:
        raise Damage("the compressed data have another length than the chunk")
    return found


_DECOMPRESSIONS: Mapping[bytes, Callable[[Buffer, int], Buffer]] = {
    b"": lambda data, _: data,
    b"zstd": _of_zstd,
    b"lz4": _of_lz4,
}


def unpack(content: bytes, budget: FileBudget) -> Buffer:
    """Returns the records of a chunk.

    Raises:
      RecordingError: it is larger than the budget allows.
      Damage: it cannot be decompressed, or its checksum is wrong.
    """
    fixed, compression, data = split(Opcode.CHUNK, content)
    _, _, size, checksum = _CHUNK.unpack(fixed)
    budget.check("chunk", size)
    decompress = _DECOMPRESSIONS.get(bytes(compression[:8]))
    if decompress is None:
        raise Damage(f"a chunk has the compression {bytes(compression[:8])!r}")
    try:
        found = decompress(data, size)
    except (zstandard.ZstdError, RuntimeError, ValueError) as error:
        raise Damage(f"a chunk cannot be decompressed: {error}") from error
    if len(found) != size:
        raise Damage(f"a chunk has {len(found)} bytes; expected {size}")
    if checksum and zlib.crc32(found) != checksum:
        raise Damage("the checksum of a chunk is wrong")
    return found


def records(data: Buffer, budget: FileBudget) -> Iterator[tuple[int, bytes, bytes]]:
    """Yields the records of a chunk: opcode, the first bytes of a message, all the rest.

    Memory that was read is given back when there is much of it, so that a large message and its
    chunk are not in memory together.
    """
    view = memoryview(data)
    del data
    place = 0
    while place < len(view):
        budget.take_record()
        if len(view) - place < PREFIX.size:
            raise Damage("a record in a chunk is cut off")
        opcode, length = PREFIX.unpack_from(view, place)
        place += PREFIX.size
        end = place + length
        begin = place + _MESSAGE_BYTES if opcode == Opcode.MESSAGE else place
        if not begin <= end <= len(view):
            raise Damage(f"a record in a chunk has {length} bytes")
        if opcode == Opcode.MESSAGE:
            budget.check("message", end - begin)
        head = bytes(view[place:begin])
        rest = bytes(view[begin:end]) if opcode in _LAYOUTS else b""
        place = end
        if length > _BLOCK and 2 * place > len(view):
            view, place = memoryview(bytes(view[place:])), 0
        yield opcode, head, rest
        del rest


class RecordFile:
    """The records of a file outside of chunks.

    Args:
      file: the file, after its magic bytes.
      size: of the file.
      budget: what a record may take.

    Attributes:
      place: where the last record begins.
      checksum: of what is before it, from the beginning or from where `begin_summary` was called.
    """

    def __init__(self, file: BinaryIO, size: int, budget: FileBudget):
        self._file = file
        self._size = size
        self._budget = budget
        self.place = 0
        self.checksum = 0
        self._following = zlib.crc32(MCAP0_MAGIC)
        # One changed bit leaves either the footer or the magic bytes after it.
        end = b""
        if size >= 2 * len(MCAP0_MAGIC) + len(_FOOTER) + _FOOTER_BYTES:
            begin = size - len(MCAP0_MAGIC) - len(_FOOTER) - _FOOTER_BYTES
            end = os.pread(file.fileno(), size - begin, begin)
        self.has_end = end.startswith(_FOOTER) or end.endswith(MCAP0_MAGIC)

    def next(self) -> tuple[int, bytes] | None:
        """Returns opcode and content of the next record; None if the file was not written whole.

        The content of a record that is not used is empty.

        Raises:
          RecordingError: it is larger than the budget allows.
          Damage: the file has an end, but not all that was before.
        """
        self._budget.take_record()
        self.place = self._file.tell()
        self.checksum = self._following
        prefix = self._file.read(PREFIX.size)
        if len(prefix) < PREFIX.size:
            self._check_may_end("it ends in the middle of a record, or without a footer")
            return None
        opcode, length = PREFIX.unpack(prefix)
        begin = self.place + PREFIX.size
        if opcode in _LAYOUTS:
            number = self._file.fileno()
            _places(opcode, length, lambda a, b: os.pread(number, b - a, begin + a))
        if length > self._size - begin:
            self._check_may_end(f"a record says that it has {length} bytes")
            return None
        self._following = zlib.crc32(prefix, self._following)
        if opcode not in _LAYOUTS:
            for _ in range(0, length, _BLOCK):
                block = self._file.read(min(_BLOCK, begin + length - self._file.tell()))
                self._following = zlib.crc32(block, self._following)
            return opcode, b""
        self._budget.check("chunk", length)
        content = self._file.read(length)
        if len(content) < length:
            self._check_may_end("it became shorter while it was read")
            return None
        self._following = zlib.crc32(content, self._following)
        return opcode, content

    def begin_summary(self) -> None:
        """Begins another checksum with the record after the last one."""
        self._following = 0

    def ends(self) -> bool:
        """Returns whether the magic bytes follow, and nothing else; False if they are cut off.

        Raises:
          Damage: other bytes follow.
        """
        found = self._file.read(len(MCAP0_MAGIC) + 1)
        if found != MCAP0_MAGIC and (self.has_end or not MCAP0_MAGIC.startswith(found)):
            raise Damage("its last bytes are not those of an MCAP file")
        return found == MCAP0_MAGIC

    def _check_may_end(self, reason: str) -> None:
        if self.has_end:
            raise Damage(reason)
