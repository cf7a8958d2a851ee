"""Header blocks of the server in one file, held against hpack, and its health service."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import grpc
import hpack
import pytest
from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import decode_huffman

from dm_env_rpc_client.launch.standalone.dm_env_rpc_server import (
    Server,
    _HeaderDecoder,
    _unhuffman,
    _Violation,
)
from dm_env_rpc_client.server import Catch
from dm_env_rpc_client.transports.services import CHECK
from tests.support.scripted import settles
from tests.transports.test_health_check import assert_is_watched, assert_serves


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


@pytest.fixture
def server() -> Iterator[Any]:
    with Server(Catch, token="secret") as running:
        yield running
        assert not running.errors


def test_health_needs_no_token(server: Any) -> None:
    assert_serves(server.address)


def test_the_health_service_answers_as_grpc_s(server: Any) -> None:
    with grpc.insecure_channel(server.address) as channel:
        check: Any = channel.unary_unary(CHECK)
        assert check(b"", timeout=20) == b"\x08\x01"
        with pytest.raises(grpc.RpcError) as caught:
            check(b"\x0a\x01x", timeout=20)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert_is_watched(server.address)
    assert settles(lambda: not server.connections, 20)
