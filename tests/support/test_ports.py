"""A held port is of one test: servers of it can listen there, and nobody else gets it.

The usual ports are of no test.
"""

from __future__ import annotations

import signal
import socket
import struct
from pathlib import Path

import pytest

from dm_env_rpc_client import ConnectionLostError, connect, make
from dm_env_rpc_client.bridges import gym_socket
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server
from dm_env_rpc_client.server import Catch, serve
from tests.support import programs
from tests.support.ports import USUAL, HeldPort, usual_ports_held
from tests.support.scripted import served_echo

_IP_LOCAL_PORT_RANGE = 51


def test_a_server_can_listen_at_a_held_port_again_and_again() -> None:
    with HeldPort() as port:
        for _ in range(3):
            with serve(Catch, port.address) as server, make(server.address) as env:
                assert server.address == port.address
                assert env.reset().first()
            with pytest.raises(ConnectionLostError, match="refused"):
                connect(port.address, timeout=0.1)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_nobody_else_gets_the_port_of_a_server_that_was_killed(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with served_echo() as server, make(server.address) as env:
        env.reset()
        number = int(server.address.rpartition(":")[2])
        server.signal(signal.SIGKILL)
        with pytest.raises(ConnectionLostError):  # Its port is free when it has ended.
            env.step({"value": 1.0})
        with any_port_of(family, number) as other, pytest.raises(OSError, match="in use"):
            other.bind((host, 0))
    with any_port_of(family, number) as other:
        other.bind((host, 0))
        assert other.getsockname()[1] == number


@pytest.mark.parametrize("number", USUAL)
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_no_server_gets_a_usual_port_during_the_tests(host: str, number: int) -> None:
    address = f"{host}:{number}"
    with usual_ports_held(), usual_ports_held():
        with pytest.raises(OSError, match="in use"):
            serve(Catch, address)
        with pytest.raises(OSError, match="in use"):
            gym_socket.serve({"catch": Catch}, address)
        with pytest.raises(ConnectionLostError, match="refused"):
            connect(address, timeout=0.1)


@pytest.mark.parametrize(
    ("port", "arguments"),
    [
        (50051, ["-m", "dm_env_rpc_client", "serve", "catch"]),
        (5001, ["-m", "dm_env_rpc_client", "serve", "catch", "--protocol", "gym-socket"]),
        (50052, ["-m", "dm_env_rpc_client", "record", "new.mcap", "--upstream", "{upstream}"]),
        (50051, ["-m", "dm_env_rpc_client", "replay", "{recording}"]),
        (50051, [dm_env_rpc_server.__file__, "dm_env_rpc_client.server:Catch"]),
    ],
    ids=["serve", "gym-socket", "record", "replay", "one file"],
)
def test_commands_that_are_given_no_address_take_a_usual_port(
    port: int, arguments: list[str], tmp_path: Path
) -> None:
    assert port in USUAL
    recording = tmp_path / "run.mcap"
    with serve(Catch) as server, usual_ports_held():
        with make(server.address, record=recording) as env:
            env.reset()
        given = [part.format(upstream=server.address, recording=recording) for part in arguments]
        finished = programs.run_python(
            *given, code=1, folder=tmp_path, environment={"PYTHONPATH": str(programs.ROOT)}
        )
    said = finished.stderr.strip().splitlines()[-1]
    assert str(port) in said
    assert "Address already in use" in said


def test_gym_sockets_server_that_is_given_no_address_takes_a_usual_port() -> None:
    with (
        usual_ports_held(),
        pytest.raises(OSError, match=r"localhost:5001: Address already in use"),
    ):
        gym_socket.serve({"catch": Catch})


def any_port_of(family: int, number: int) -> socket.socket:
    """A socket as a server has it, for which any free port is this one (Linux 6.3)."""
    made = socket.socket(family)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.setsockopt(
            socket.IPPROTO_IP, _IP_LOCAL_PORT_RANGE, struct.pack("=I", number << 16 | number)
        )
    except OSError:
        made.close()
        pytest.skip("this system has no IP_LOCAL_PORT_RANGE")
    return made
