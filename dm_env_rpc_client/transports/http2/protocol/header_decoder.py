"""Decodes header blocks (RFC 7541), three to four times as fast as `hpack` does.

A server has one thread for all clients, and any client may make it decode a header block: 3,500
bytes in Huffman's code took 1.1 ms, now 0.3. The tables are those of `hpack`, which encodes.
"""

from __future__ import annotations

import collections

from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.table import HeaderTable

from dm_env_rpc_client.transports.http2.protocol.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM
from dm_env_rpc_client.transports.http2.protocol.role import Header, ViolationError

TABLE_BYTES = 4096
"""The largest table; no SETTINGS of ours change it (section 4.2)."""

_ENTRY_BYTES = 32
"""What an entry of the table counts beside its name and value (section 4.1)."""

_STATIC: tuple[Header, ...] = tuple(HeaderTable.STATIC_TABLE)
_MAX_SHIFT = 21
"""Of the last byte of an integer: there are none above 2^28 in a block of limited size."""

_END_OF_STRING = 256


class HeaderDecoder:
    """The decoder's end of a compressed connection.

    Args:
      max_list_bytes: the largest list of headers that is accepted, uncompressed: names, values
        and 32 bytes for each header (RFC 9113, section 6.5.2).

    Attributes:
      list_bytes: the size of the list that was decoded last, also if it was not accepted.
    """

    def __init__(self, max_list_bytes: int):
        self.list_bytes = 0
        self._max_list_bytes = max_list_bytes
        self._table: collections.deque[Header] = collections.deque()
        self._table_bytes = 0
        self._max_table_bytes = TABLE_BYTES

    def decode(self, block: bytes) -> list[Header]:
        """Returns the headers of a block, in order.

        Raises:
          ViolationError: the block is malformed, or its list of headers is too large. The table
            is lost then, so the connection has to end.
        """
        headers: list[Header] = []
        self.list_bytes = at = 0
        try:
            while True:
                if at >= len(block):
                    break
                first = block[at]
                if first & 0x80:
                    index, at = _integer(block, at, 0x7F)
                    header = self._entry(index)
                elif first & 0xE0 == 0x20:
                    if headers:
                        raise _broken("changed the size of the table behind a header")
                    size, at = _integer(block, at, 0x1F)
                    if size > TABLE_BYTES:
                        raise _broken(f"set the size of the table to {size}")
                    self._max_table_bytes = size
                    self._evict(0)
                    continue
                else:
                    is_added = bool(first & 0x40)
                    index, at = _integer(block, at, 0x3F if is_added else 0x0F)
                    if index:
                        name = self._entry(index)[0]
                    else:
                        name, at = _string(block, at)
                    value, at = _string(block, at)
                    header = (name, value)
                    if is_added:
                        self._add(header)
                self.list_bytes += len(header[0]) + len(header[1]) + _ENTRY_BYTES
                if self.list_bytes > self._max_list_bytes:
                    raise ViolationError(
                        f"sent headers of more than {self._max_list_bytes} bytes",
                        ENHANCE_YOUR_CALM,
                    )
                headers.append(header)
        except IndexError:
            raise _broken("the block ends in the middle of a header") from None
        return headers

    def _entry(self, index: int) -> Header:
        if 0 < index <= len(_STATIC):
            return _STATIC[index - 1]
        if 0 < index <= len(_STATIC) + len(self._table):
            return self._table[index - len(_STATIC) - 1]
        raise _broken(f"the table has no entry {index}")

    def _add(self, header: Header) -> None:
        size = len(header[0]) + len(header[1]) + _ENTRY_BYTES
        self._evict(size)
        # One that is larger than the table leaves it empty (section 4.4).
        if size <= self._max_table_bytes:
            self._table.appendleft(header)
            self._table_bytes += size

    def _evict(self, room: int) -> None:
        table = self._table
        while table and self._table_bytes + room > self._max_table_bytes:
            name, value = table.pop()
            self._table_bytes -= len(name) + len(value) + _ENTRY_BYTES


def _broken(what: str) -> ViolationError:
    return ViolationError(f"sent headers that cannot be decoded: {what}", COMPRESSION_ERROR)


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Returns an integer (section 5.1) and where it ends; IndexError if it does not."""
    number = block[at] & mask
    at += 1
    if number < mask:
        return number, at
    for shift in range(0, _MAX_SHIFT + 1, 7):
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise _broken("an integer is too large")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    """Returns a string (section 5.2) and where it ends; IndexError if it does not."""
    is_coded = block[at] & 0x80
    size, at = _integer(block, at, 0x7F)
    end = at + size
    if end > len(block):
        raise IndexError
    string = block[at:end]
    return (_decoded(string) if is_coded else string), end


# Huffman's code (section 5.2 and appendix B), by bytes: in each state, which is a place within the
# tree of codes, a byte leads to another state and completes up to two characters.


class _State(dict[int, "tuple[_State, bytes]"]):
    """What each byte leads to; found out when it is first needed.

    Args:
      branch: the place in the tree.
      may_end: whether a string may end here: with less than 8 bits of padding, which are ones.
    """

    __slots__ = ("_branch", "may_end")

    def __init__(self, branch: list[object], may_end: bool):
        self._branch = branch
        self.may_end = may_end

    def __missing__(self, byte: int) -> tuple[_State, bytes]:
        branch = self._branch
        characters = bytearray()
        for shift in range(7, -1, -1):
            node = branch[byte >> shift & 1]
            if isinstance(node, int):
                if node == _END_OF_STRING:
                    raise _broken("a string holds the end of strings")
                characters.append(node)
                branch = _ROOT
            else:
                assert isinstance(node, list)
                branch = node
        found = self[byte] = _STATES[id(branch)], bytes(characters)
        return found


def _tree() -> list[object]:
    root: list[object] = [None, None]
    for symbol, (code, length) in enumerate(zip(REQUEST_CODES, REQUEST_CODES_LENGTH, strict=True)):
        branch = root
        for shift in range(length - 1, 0, -1):
            bit = code >> shift & 1
            if branch[bit] is None:
                branch[bit] = [None, None]
            inner = branch[bit]
            assert isinstance(inner, list)
            branch = inner
        branch[code & 1] = symbol
    return root


def _states(root: list[object]) -> dict[int, _State]:
    states: dict[int, _State] = {}
    # Each place, and the number of ones that lead there from the root; -1 if there are others.
    places: list[tuple[list[object], int]] = [(root, 0)]
    while places:
        branch, ones = places.pop()
        states[id(branch)] = _State(branch, 0 <= ones < 8)
        for bit in (0, 1):
            inner = branch[bit]
            if isinstance(inner, list):
                places.append((inner, ones + 1 if bit and ones >= 0 else -1))
    return states


_ROOT = _tree()
_STATES = _states(_ROOT)
_FIRST = _STATES[id(_ROOT)]


def _decoded(coded: bytes) -> bytes:
    state = _FIRST
    parts: list[bytes] = []
    append = parts.append
    for byte in coded:
        state, characters = state[byte]
        append(characters)
    if not state.may_end:
        raise _broken("the padding of a string is malformed")
    return b"".join(parts)
