"""Workers in threads of the test's own process, where its tools see what they do.

`test_processes.py` has real worker processes.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dm_env_rpc_client import (
    ConnectionLostError,
    DmEnvRpcError,
    connect,
    create_world,
    destroy_world,
    dm_env_rpc_pb2,
    join_world,
)
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.protocol import envelopes
from dm_env_rpc_client.protocol.pipeline import Pending
from dm_env_rpc_client.server import Properties, Server, serve
from dm_env_rpc_client.server.processes.messages import send_message
from dm_env_rpc_client.server.processes.worker_main import Worker
from dm_env_rpc_client.system import spawned
from dm_env_rpc_client.system.message_pipe import MessagePipe
from tests.server.worker_processes import elsewhere, workers_of
from tests.support.environments import Echo
from tests.support.scripted import settles

SECONDS = 20.0


class Fails(Echo):
    """Fails in every step."""

    def step(self, action: Any) -> Any:
        raise RuntimeError("broken in step")


class InThread:
    """In the place of a process."""

    exitcode = 0

    def __init__(self, target: Any, args: tuple[Any, ...], **_: Any):
        self.pid = os.getpid()
        self._args = args
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        _, control, (options, *questions, counted, _) = self._args
        # The other copies are closed, as they are in the parent of a process.
        pipes = [MessagePipe.of(os.dup(pipe.fileno())) for pipe in (control, *questions)]
        self._control, *self._asks = pipes
        properties, share = self._asks
        self._worker = Worker(pickle.loads(options), self._control, properties, share, counted)
        self._thread.start()

    def _run(self) -> None:
        send_message(self._control, "ready")
        self._worker.run()
        for pipe in (self._control, *self._asks):
            pipe.close()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout: float | None = None) -> None:
        self._thread.join(timeout)

    def kill(self) -> None:
        raise AssertionError("a thread cannot be killed")

    def close(self) -> None:
        assert not self.is_alive()


@pytest.fixture
def level() -> list[int]:
    """The value of a property of the server."""
    return [1]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, level: list[int]) -> Iterator[Server]:
    in_threads = SimpleNamespace(Process=InThread)
    multiprocessing = SimpleNamespace(get_context=lambda method: in_threads)
    monkeypatch.setattr(spawned, "multiprocessing", multiprocessing)
    properties = Properties()
    properties.add("level", lambda: level[0], lambda value: level.__setitem__(0, value))
    properties.add("failing", lambda: 1 / 0)
    environments = {"where": Echo, "fails": Fails}
    with serve(environments, processes=2, max_connections=3, properties=properties) as server:
        yield server


def test_worlds_are_spread_and_streams_reach_them_wherever_they_are(server: Server) -> None:
    with connect(server.address) as first, connect(server.address) as second:
        names = [create_world(first, {"environment": "where"}) for _ in range(4)]
        assert len({workers_of(server).of(name) for name in names}) == 2
        for name in names:
            with join_world(first, name) as env:
                assert env.reset().first()
                for value in range(5):
                    assert env.step({"value": value}).observation == {"value": value}
        # What is about a world goes there from any connection.
        for connection, name in zip((first, second) * 2, names, strict=True):
            destroy_world(connection, name)
        assert server.world_count == 0
        with pytest.raises(DmEnvRpcError, match="no world 'nowhere'; worlds: none; create one"):
            join_world(first, "nowhere")
        names = [create_world(first, {"environment": "where"}) for _ in range(2)]
        with pytest.raises(DmEnvRpcError, match=f"worlds: '{names[0]}', '{names[1]}'"):
            destroy_world(second, "nowhere")
        assert server.stats().steps == 24


def test_errors_and_refusals_come_from_the_worker_with_the_world(server: Server) -> None:
    with elsewhere(server, "fails") as (connection, name):
        with join_world(connection, name) as env:
            env.reset()
            with pytest.raises(DmEnvRpcError, match="broken in step"):
                env.step({"value": 1})
            with pytest.raises(DmEnvRpcError, match="join_world request is not allowed"):
                connection.send(dm_env_rpc_pb2.JoinWorldRequest(world_name=name))
        assert [str(error) for error in server.errors] == ["broken in step"]
        with connect(server.address), connect(server.address):
            # Their streams may be seen after the next one.
            assert settles(lambda: server.stats().streams == 3)
            with (
                connect(server.address) as refused,
                pytest.raises(ConnectionLostError, match="limit of 3 streams"),
            ):
                create_world(refused)
        assert server.stats().refused_streams == 1


def test_a_worker_that_is_gone_is_told(server: Server) -> None:
    with connect(server.address) as mine, connect(server.address) as other:
        _, name = (create_world(each, {"environment": "where"}) for each in (mine, other))
        env = join_world(mine, name)
        share = workers_of(server).of(name)
        (far,) = (each for each in workers_of(server)._workers.values() if each.share is share)
        send_message(far.control, "levels", {})
        send_message(far.control, "stop", 0.0)
        # Another has its place.
        assert settles(lambda: workers_of(server)._workers[far.index] is not far)
        with pytest.raises(ConnectionLostError, match="stream's world has ended") as lost:
            env.reset()
        assert lost.value.code == "UNAVAILABLE"
        with mine.reopen() as later:
            request = dm_env_rpc_pb2.JoinWorldRequest(world_name=name)
            with pytest.raises(DmEnvRpcError, match="no world"):
                later.send(request)


def test_a_client_that_leaves_frees_its_place_at_the_worker(server: Server) -> None:
    with elsewhere(server) as (connection, name):
        with connection.reopen() as another:
            join_world(another, name).reset()
            assert server.agent_count == 1
        assert settles(lambda: server.agent_count == 0)


def test_a_message_that_is_no_request_ends_a_stream(server: Server) -> None:
    with elsewhere(server) as (connection, name), connection.reopen() as another:
        join_world(another, name)
        encoded = envelopes.encode_request(dm_env_rpc_pb2.StepRequest())
        pending = Pending(encoded._replace(message=encoded.message[:1] + b"\xff"))
        another._send(pending)
        with pytest.raises(ConnectionLostError, match="not an EnvironmentRequest") as lost:
            another.wait(pending)
        assert lost.value.code == "INVALID_ARGUMENT"


def test_properties_are_those_of_the_servers_own_process(server: Server, level: list[int]) -> None:
    with connect(server.address) as one, connect(server.address) as other:
        first, second = PropertiesExtension(one), PropertiesExtension(other)
        first["level"] = 7
        assert (second["level"], level) == (7, [7])
        assert set(second.specs()) == {"level", "failing"}
        for key, text in (("nothing", "no property"), ("failing", "ZeroDivisionError: division")):
            with pytest.raises(DmEnvRpcError, match=text):
                second.read(key)
