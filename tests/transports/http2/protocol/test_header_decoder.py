from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dm_env_rpc_client.transports.http2.protocol.frames import (
    ENHANCE_YOUR_CALM,
    Header,
    ViolationError,
)
from dm_env_rpc_client.transports.http2.protocol.headers import (
    TABLE_BYTES,
    HeaderDecoder,
)

LIMIT = 1 << 16


def theirs(decoder: hpack.Decoder, block: bytes) -> list[Header] | None:
    """The headers; None if the block is refused."""
    try:
        return [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]
    except hpack.HPACKError:
        return None


def ours(decoder: HeaderDecoder, block: bytes) -> list[Header] | None:
    try:
        return decoder.decode(block)
    except ViolationError:
        return None


names = st.sampled_from([b":path", b"content-type", b"te", b"x", b"a-long-name" * 5])
values = st.binary(max_size=40) | st.sampled_from([b"POST", b"trailers", b"y" * 3_000])
lists = st.lists(st.tuples(names | st.binary(min_size=1, max_size=12), values), max_size=8)


@given(
    st.lists(st.tuples(lists, st.booleans()), max_size=6),
    st.sampled_from([0, 100, 1_000, TABLE_BYTES]),
)
def test_what_hpack_encodes_is_decoded(
    blocks: list[tuple[list[Header], bool]], table_bytes: int
) -> None:
    encoder, decoder = hpack.Encoder(), HeaderDecoder(LIMIT)
    encoder.header_table_size = table_bytes
    for headers, huffman in blocks:
        assert decoder.decode(encoder.encode(headers, huffman=huffman)) == headers


@given(st.lists(lists, min_size=1, max_size=3), st.data())
def test_changed_blocks_are_decoded_or_refused_as_by_hpack(
    several: list[list[Header]], data: st.DataObject
) -> None:
    encoder, decoder, other = hpack.Encoder(), HeaderDecoder(LIMIT), hpack.Decoder(LIMIT)
    for headers in several:
        block = bytearray(encoder.encode(headers))
        if block:
            for _ in range(data.draw(st.integers(0, 3))):
                block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
        found, expected = ours(decoder, bytes(block)), theirs(other, bytes(block))
        assert found == expected
        if found is None:
            return


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused_as_by_hpack(block: bytes) -> None:
    assert ours(HeaderDecoder(LIMIT), block) == theirs(hpack.Decoder(LIMIT), block)


def test_a_list_of_limited_size_is_taken() -> None:
    block = hpack.Encoder().encode([(b"x", b"y" * 67)])
    assert HeaderDecoder(100).decode(block) == [(b"x", b"y" * 67)]
    for smaller in (99, 1):
        with pytest.raises(ViolationError, match="headers of more than") as refused:
            HeaderDecoder(smaller).decode(block)
        assert refused.value.code == ENHANCE_YOUR_CALM


def test_an_entry_larger_than_the_table_empties_it() -> None:
    decoder = HeaderDecoder(LIMIT)
    decoder.decode(hpack.Encoder().encode([(b"a", b"b")]))
    assert decoder.decode(b"\xbe") == [(b"a", b"b")]
    large = b"\x40\x01x\x7f" + bytes([0xA1, 0x1F]) + b"y" * 4_128
    assert decoder.decode(large) == [(b"x", b"y" * 4_128)]
    assert ours(decoder, b"\xbe") is None
