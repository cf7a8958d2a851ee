"""Header blocks in the server in one file, held against the package `hpack`."""

from __future__ import annotations

import random

import hpack
import pytest
from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import decode_huffman

from dm_env_rpc_client.launch.standalone.dm_env_rpc_server import (
    _HeaderDecoder,
    _unhuffman,
    _Violation,
)


def test_blocks_of_a_connection_are_decoded_as_hpack_does() -> None:
    chance = random.Random(1)
    encoder, decoder = hpack.Encoder(), _HeaderDecoder()
    names = [b":path", b"content-type", b"x", b"user-agent", b"a-longer-name"]
    for _ in range(1000):
        headers = [
            (chance.choice(names), chance.randbytes(chance.randrange(60)))
            for _ in range(chance.randrange(1, 8))
        ]
        assert decoder.decode(encoder.encode(headers, huffman=chance.random() < 0.7)) == headers


@pytest.mark.parametrize("likely", [0, 0xFF])
def test_huffman_codes_are_decoded_or_refused_as_hpack_does(likely: int) -> None:
    chance = random.Random(2)
    refused = 0
    for _ in range(20_000):
        coded = bytes(
            chance.choice((likely, chance.randrange(256))) for _ in range(chance.randrange(12))
        )
        try:
            expected = decode_huffman(coded)
        except HPACKDecodingError:
            refused += 1
            with pytest.raises(_Violation):
                _unhuffman(coded)
        else:
            assert _unhuffman(coded) == expected
    assert 1_000 < refused < 19_000
