"""Ports: the whole of localhost, or an error."""

from __future__ import annotations

import os
import socket

import pytest

from dm_env_rpc_client import make
from dm_env_rpc_client.server import Catch, serve
from dm_env_rpc_client.transports.net.listening import listen


@pytest.mark.parametrize("place", ["127.0.0.1", "::1"])
def test_a_port_that_another_program_has_on_one_of_them_is_taken(place: str) -> None:
    family = socket.AF_INET6 if ":" in place else socket.AF_INET
    with socket.socket(family) as other:
        other.bind((place, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on localhost:{port}"):
            serve(Catch, f"localhost:{port}")


def test_a_port_that_is_taken_in_the_meantime_is_left_for_another() -> None:
    asked: list[str] = []

    def add_port(address: str) -> int:
        asked.append(address)
        if len(asked) == 2:
            raise OSError("taken")
        return int(address.rpartition(":")[2])

    bound = listen(add_port, "localhost:0")
    assert asked[0].startswith("127.0.0.1:")
    assert asked[1].startswith("[::1]:")
    assert bound == f"localhost:{asked[-1].rpartition(':')[2]}"
    assert asked[0] != asked[2]


def test_there_is_an_end_to_trying() -> None:
    def add_port(address: str) -> int:
        raise OSError("taken")

    with pytest.raises(OSError, match="cannot listen on localhost:0: taken"):
        listen(add_port, "localhost:0")


def test_the_address_of_an_abstract_socket_is_the_one_that_was_given() -> None:
    name = f"unix-abstract:listening-{os.getpid()}"
    with serve(Catch, name, transport="grpc") as server, make(server.address) as env:
        assert server.address == name
        assert env.reset().first()
