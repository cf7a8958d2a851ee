"""The server of gym-socket-api: sessions byte for byte, their ends, and hostile clients."""

from __future__ import annotations

import functools
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import dm_env
import pytest
from absl.testing import absltest
from dm_env import test_utils

from dm_env_rpc_client.bridges.gym_socket import GymSocketEnvironment, Server, serve
from dm_env_rpc_client.errors import ConnectionLostError, DmEnvRpcError, SpecError
from dm_env_rpc_client.server import Catch
from tests.bridges.gym_socket import hosted
from tests.bridges.gym_socket.hosted import counting, hosting
from tests.bridges.gym_socket.peers import OK, RESET, Peer, sized
from tests.launch.processes import is_alive
from tests.support.scripted import settles
from tests.support.stopwatch import Stopwatch, patience

COUNTER = b"\x00\x07\x00\x00\x00Counter"
ZERO = b"\x00\x03\x00\x00\x00[0]"


def step(action: int) -> bytes:
    return b"\x01\x00" + sized(str(action).encode())


class QuietCounter(hosted.Counter):
    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.info = {}


@pytest.fixture
def server() -> Iterator[Server]:
    with counting(QuietCounter) as server:
        yield server


@contextmanager
def greeted(server: Server) -> Iterator[Peer]:
    with Peer.connect(server.address) as client:
        client.ask(COUNTER, OK)
        yield client


def test_a_session_byte_for_byte(server: Server) -> None:
    with greeted(server) as client:
        client.ask(b"\x02\x00", b'\x19\x00\x00\x00{"type":"Discrete","n":5}')
        client.ask(b"\x02\x01", b'\x2d\x00\x00\x00{"type":"MultiDiscrete","low":[0],"high":[9]}')
        client.ask(RESET, ZERO)
        one = b"\x00\x03\x00\x00\x00[1]"
        client.ask(step(0), one + b"\x00\x00\x00\x00\x00\x00\xf0\x3f\x00\x02\x00\x00\x00{}")
        client.ask(step(1), b"\x00\x03\x00\x00\x00[2]" + b"\x00\x00\x00\x00\x00\x00\xf0\x3f\x00")
        client.expect(b"\x02\x00\x00\x00{}")
        client.send(b"\x03")
        sampled = client.receive(6)
        assert sampled[:5] == b"\x00\x01\x00\x00\x00"
        assert sampled[5:] in b"01234"
        client.send(b"\x05")  # Render, without an answer.
        client.ask(step(0), b"\x00\x03\x00\x00\x00[3]\x00\x00\x00\x00\x00\x00\xf0\x3f\x01")
        client.expect(b"\x02\x00\x00\x00{}")
        refusal = b"this server does not upload: what Monitor records stays in the folder of "
        refusal += b"its operator"
        client.ask(b"\x06\x01\x00\x00\x00m" + bytes(8), sized(refusal))
        client.ask(RESET, ZERO)
        assert server.session_count == 1
    assert settles(lambda: server.session_count == 0)
    assert not server.errors


def test_an_info_that_contradicts_the_end_is_corrected() -> None:
    class Limited(hosted.Counter):
        def step(self, action: Any) -> dm_env.TimeStep:
            self.info = {"TimeLimit.truncated": True}
            return super().step(action)

    with hosting(functools.partial(Limited, length=2)) as (_, environment):
        environment.reset()
        environment.step(0)
        assert environment.info["TimeLimit.truncated"] is True
        assert environment.step(0).discount == 0.0
        assert environment.info["TimeLimit.truncated"] is False


def test_an_environments_own_render_and_samples_are_used() -> None:
    with hosting(hosted.Rendered) as (_, environment):
        environment.render()
        environment.render()
        assert [environment.sample_action().item() for _ in range(8)] == [4] * 8
        environment.reset()
        environment.step(0)
        assert environment.info["renderings"] == 2


@pytest.mark.row(28)
@pytest.mark.parametrize("name", ["", "Unknown", "os:system", "tests.nowhere:Counter-v0"])
def test_names_are_looked_up_and_nothing_is_imported(server: Server, name: str) -> None:
    modules = set(sys.modules)
    with Peer.connect(server.address, b"\x00" + sized(name.encode())) as client:
        if not name:
            client.expect(OK)
            client.send(RESET)
        else:
            client.expect(sized(f"no environment {name!r}; environments: 'Counter'".encode()))
        assert client.is_cut_off()
    assert {module for module in set(sys.modules) - modules if "nowhere" in module} == set()


@pytest.mark.parametrize(
    "packets",
    [
        step(0),  # Before a Reset.
        RESET + step(9),
        RESET + b"\x01\x00\x03\x00\x00\x00[0]",
        RESET + b"\x01\x01\x00\x00\x00\x00",
        b"\x07",
        b"\x01\x00\xff\xff\xff\xff",
        b"\x04\x00\x00\x01\x00\x00\x00m",  # Monitor, which the first dialect cannot refuse.
    ],
)
def test_clients_that_break_the_protocol_are_cut_off(server: Server, packets: bytes) -> None:
    with greeted(server) as other, greeted(server) as client:
        client.send(packets)
        if packets.startswith(RESET):
            client.expect(ZERO)
        assert client.is_cut_off()
        other.ask(RESET, ZERO)
    assert settles(lambda: server.session_count == 0)  # An error is told after the end.
    assert not server.errors


def test_a_step_after_the_last_needs_a_reset() -> None:
    one_step = functools.partial(hosted.Counter, length=1)
    with counting(one_step) as server, greeted(server) as client:
        client.ask(RESET, ZERO)
        client.ask(step(0), b"\x00\x03\x00\x00\x00[1]")
        client.send(step(0))
        client.receive(200)
        assert client.is_cut_off()


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (hosted.broken, "RuntimeError: no display"),
        (hosted.no_environment, "returned an object of type int; expected a dm_env"),
        (hosted.TwoRewards, "supports only scalar rewards"),
    ],
)
def test_environments_that_cannot_be_made(factory: Any, message: str) -> None:
    with counting(factory) as server:
        with pytest.raises(DmEnvRpcError, match=message):
            GymSocketEnvironment(server.address, "Counter")
        assert settles(lambda: len(server.errors) == 1)


def episode(environment: GymSocketEnvironment, action: int) -> None:
    environment.reset()
    environment.step(action)


@pytest.mark.parametrize(
    ("factory", "action", "error"),
    [
        (hosted.Counter, 2, RuntimeError),
        (hosted.Restarting, 0, RuntimeError),
        (hosted.WrongShape, 0, SpecError),
        (hosted.WrongKeys, 0, RuntimeError),
    ],
)
def test_an_environment_that_fails_ends_its_own_session(
    factory: Any, action: int, error: type[Exception]
) -> None:
    with (
        serve({"Bad": factory, "Good": hosted.Counter}, "localhost:0") as server,
        GymSocketEnvironment(server.address, "Good") as good,
        GymSocketEnvironment(server.address, "Bad") as bad,
    ):
        good.reset()
        with pytest.raises(ConnectionLostError):
            episode(bad, action)
        assert good.step(0).mid()
        assert settles(lambda: len(server.errors) == 1)
        assert isinstance(server.errors[0], error)


def test_environments_are_closed_with_their_session() -> None:
    made: list[hosted.Counter] = []

    def make() -> hosted.Counter:
        made.append(hosted.Counter())
        return made[-1]

    with counting(make) as server:
        GymSocketEnvironment(server.address, "Counter").close()
        assert settles(lambda: made[0].closed)
        environment = GymSocketEnvironment(server.address, "Counter")
        server.stop()
        assert made[1].closed
        with pytest.raises(ConnectionLostError):
            environment.reset()
        environment.close()


def test_clients_beyond_the_limit_are_told_so() -> None:
    with counting(max_connections=2) as server:
        kept = [GymSocketEnvironment(server.address, "Counter") for _ in range(2)]
        start = Stopwatch()
        with pytest.raises(DmEnvRpcError, match="the server has 2 clients, its limit"):
            GymSocketEnvironment(server.address, "Counter")
        assert start.within(1.0)
        kept.pop().close()
        assert settles(lambda: server.session_count == 1)
        GymSocketEnvironment(server.address, "Counter").close()
        crowd = [Peer.connect(server.address) for _ in range(40)]
        assert server.session_count <= 2 + 16
        assert crowd[-1].is_cut_off()
        for client in crowd:
            client.close()
        kept.pop().close()


def test_silent_clients_are_cut_off() -> None:
    handshake, idle = patience(0.5), patience(1.5)
    with counting(handshake_timeout=handshake, idle_timeout=idle) as server:
        with Peer.connect(server.address, b"\x00\x07\x00") as client:
            start = Stopwatch()
            assert client.is_cut_off()
            assert start.within(handshake + 1.0)
        with greeted(server) as client:
            time.sleep(0.6 * idle)  # Less than the idle time, of which it takes more than half.
            client.ask(RESET, ZERO)
            time.sleep(0.6 * idle)  # Once more, in all longer than the idle time.
            client.ask(RESET, ZERO)
            client.send(b"\x01\x00")
            assert client.is_cut_off()
        assert not server.errors


def test_a_client_that_does_not_read_is_cut_off() -> None:
    with (
        counting(hosted.LargeFrames, idle_timeout=0.3) as server,
        greeted(server) as client,
    ):
        # Its answers are more than the buffers of two sockets hold.
        with pytest.raises(OSError, match=r"timed out|reset|[Bb]roken"):
            client.send(RESET * 20_000_000)
        assert settles(lambda: server.session_count == 0)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"address": "0.0.0.0:0"}, "insecure=True"),
        ({"environments": {"": hosted.Counter}}, "1 to 256 bytes"),
        ({"environments": {"n" * 257: hosted.Counter}}, "1 to 256 bytes"),
        ({"dialect": "middle"}, "unknown dialect"),
        ({"environments": {"C": lambda: 0}, "processes": True}, "can be pickled"),
    ],
)
def test_servers_that_cannot_be(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        serve(**{"environments": {"C": hosted.Counter}, "address": "localhost:0", **kwargs})


def test_stop_ends_every_session_and_thread(server: Server) -> None:
    before = threading.active_count()
    with ExitStack() as stack:
        clients = [stack.enter_context(greeted(server)) for _ in range(5)]
        assert repr(server) == f"<Server at {server.address}: 5 sessions>"
        assert not server.wait(0.01)
        start = Stopwatch()
        server.stop()
        server.stop()
        assert start.within(2.0)
        assert server.wait(0)
        assert all(client.is_cut_off() for client in clients)
    assert settles(lambda: threading.active_count() < before)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("localhost", int(server.address.rpartition(":")[2])), 1)


def test_stop_does_not_wait_for_a_step_that_hangs() -> None:
    with counting() as server, greeted(server) as client:
        client.ask(RESET, ZERO)
        client.send(step(4))
        time.sleep(0.1)  # Usually it is in the step then; nothing tells when.
        start = Stopwatch()
        server.stop(0.2)
        assert start.within(2.0)


def test_a_forgotten_server_stops() -> None:
    server = serve({"C": hosted.Counter}, "localhost:0")
    port = int(server.address.rpartition(":")[2])
    del server

    def is_gone() -> bool:
        try:
            socket.create_connection(("localhost", port), 1).close()
        except ConnectionRefusedError:
            return True
        return False

    assert settles(is_gone)


class TestConformance(test_utils.EnvironmentTestMixin, absltest.TestCase):
    """dm_env's own tests, on Catch through both ends."""

    def make_object_under_test(self) -> dm_env.Environment:
        server = self.enter_context(serve({"Catch": Catch}, "localhost:0"))
        return GymSocketEnvironment(server.address, "Catch")


@pytest.fixture
def apart() -> Iterator[Server]:
    environments = {"Counter": hosted.Counter, "Broken": hosted.broken}
    with serve(environments, "localhost:0", processes=True) as server:
        yield server


def counter(server: Server, **options: Any) -> GymSocketEnvironment:
    return GymSocketEnvironment(server.address, "Counter", **options)


def pid_of(environment: GymSocketEnvironment) -> int:
    environment.reset()
    environment.step(0)
    return int(environment.info["pid"])


def test_a_crash_harms_one_session_only(apart: Server) -> None:
    with counter(apart) as one, counter(apart) as other:
        assert len({os.getpid(), pid_of(one), pid_of(other)}) == 3
        start = Stopwatch()
        with pytest.raises(ConnectionLostError):
            one.step(3)
        assert start.within(2.0)
        assert other.step(0).mid()
        assert settles(lambda: len(apart.errors) == 1)
        assert "exit code 3" in str(apart.errors[0])
    with counter(apart) as another:
        assert another.reset().first()


def test_a_hanging_step_does_not_outlive_the_server(apart: Server) -> None:
    with counter(apart, request_timeout=30) as environment:
        pid = pid_of(environment)
        environment._connection._request_timeout = 0.2
        with pytest.raises(TimeoutError):
            environment.step(4)
        apart.stop(0.2)
        assert settles(lambda: not is_alive(pid))


def test_an_environment_that_cannot_be_made(apart: Server) -> None:
    with pytest.raises(DmEnvRpcError, match="RuntimeError: no display"):
        GymSocketEnvironment(apart.address, "Broken")
