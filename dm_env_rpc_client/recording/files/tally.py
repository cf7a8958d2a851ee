"""What was read of a file, to compare it with its indexes and with its end."""

from __future__ import annotations

import struct
import zlib

from mcap.opcode import Opcode

from dm_env_rpc_client.recording.files.layout import PREFIX, Damage, split

_FOOTER = struct.Struct("<QQI")
_STATISTICS = struct.Struct("<QHIIIIQQ")
_COUNT = struct.Struct("<HQ")
_TIME_AND_PLACE_BYTES = 16
_MOST_CHANNELS = 1 << 16


class Tally:
    """Counts chunks and messages, and knows schemas and channels."""

    def __init__(self) -> None:
        self._chunks = 0
        self._messages: dict[int, int] = {}
        # Those of the last chunk, until something other than its indexes follows.
        self._of_chunk: dict[int, int] = {}
        self._definitions: dict[tuple[int, int], int] = {}
        self._statistics: bytes | None = None

    def begin_chunk(self) -> None:
        """A chunk begins; its indexes follow it."""
        self._chunks += 1

    def end_chunk(self) -> None:
        """There are no more indexes of the last chunk."""
        for channel, count in self._of_chunk.items():
            self._messages[channel] = self._messages.get(channel, 0) + count
        self._of_chunk.clear()

    def add_message(self, channel: int) -> None:
        """Counts a message."""
        self._of_chunk[channel] = self._of_chunk.get(channel, 0) + 1

    def check_index(self, content: bytes) -> None:
        """Compares a MessageIndex with the chunk before it."""
        fixed, places = split(Opcode.MESSAGE_INDEX, content)
        channel = int.from_bytes(fixed, "little")
        count = self._of_chunk.get(channel, 0)
        if len(places) != count * _TIME_AND_PLACE_BYTES:
            raise Damage(
                f"the index of a chunk has {len(places) / _TIME_AND_PLACE_BYTES:g} messages of "
                f"channel {channel}; {count} were read"
            )

    def define(self, opcode: int, content: bytes) -> bool:
        """Returns whether a schema or channel is a new one, and not a repetition."""
        number = int.from_bytes(split(opcode, content)[0][:2], "little")
        checksum = zlib.crc32(content)
        known = self._definitions.get((opcode, number))
        if known not in (None, checksum):
            raise Damage(f"the {Opcode(opcode).name.lower()} {number} is there twice, differently")
        self._definitions[opcode, number] = checksum
        return known is None

    def check_data(self, content: bytes, checksum: int) -> None:
        """Compares the end of the data with their checksum; 0 is none."""
        expected = int.from_bytes(content, "little")
        if expected not in (0, checksum):
            raise Damage("the checksum of the data is wrong")

    def set_statistics(self, content: bytes) -> None:
        """Takes the numbers that were written, for `check_end`."""
        if self._statistics is not None:
            raise Damage("there are two Statistics records")
        self._statistics = content

    def check_end(self, content: bytes, checksum: int, summary_start: int | None) -> None:
        """Compares the end of the file.

        Args:
          content: the footer.
          checksum: of the summary.
          summary_start: where the summary begins; None if there is none.
        """
        start, _, expected = _FOOTER.unpack(content)
        covered = PREFIX.pack(Opcode.FOOTER, _FOOTER.size) + content[:-4]
        if expected not in (0, zlib.crc32(covered, checksum)):
            raise Damage("the checksum of the summary is wrong")
        if start != (summary_start or 0):
            raise Damage(f"the footer says that the summary begins at byte {start}")
        if self._statistics is None:
            return
        fixed, by_channel = split(Opcode.STATISTICS, self._statistics)
        if len(by_channel) > _MOST_CHANNELS * _COUNT.size:
            raise Damage("there are more counts of messages than channels")
        messages, _, _, _, _, chunks, _, _ = _STATISTICS.unpack(fixed)
        if len(by_channel) % _COUNT.size:
            raise Damage("the counts of messages are cut off")
        counts = {channel: count for channel, count in _COUNT.iter_unpack(by_channel) if count}
        read = sum(self._messages.values())
        if (messages, chunks) != (read, self._chunks) or (counts and counts != self._messages):
            raise Damage(
                f"it should have {messages} messages in {chunks} chunks; {read} in {self._chunks} "
                "chunks were read"
            )
