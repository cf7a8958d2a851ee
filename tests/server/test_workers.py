"""Two workers of a server within the process of the test, where its tools see what they do.

`test_processes.py` has real worker processes. Here the test takes the part of the server's own
process: it hands over connections and passes on the pipes of forwarded streams.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dm_env_rpc_client import (
    Connection,
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
from dm_env_rpc_client.server import Properties
from dm_env_rpc_client.server.activity import COUNTED
from dm_env_rpc_client.server.options import ServeOptions
from dm_env_rpc_client.server.processes.asked_properties import answer_questions
from dm_env_rpc_client.server.processes.board import Board
from dm_env_rpc_client.server.processes.messages import hear, say
from dm_env_rpc_client.server.processes.worker import Worker
from dm_env_rpc_client.system.message_pipe import MessagePipe
from tests.environments import Echo
from tests.scripted import settles

COUNT = 2
SECONDS = 20.0


class Fails(Echo):
    """Fails in every step."""

    def step(self, action: Any) -> Any:
        raise RuntimeError("broken in step")


class Workers:
    """The workers, and the door before them.

    Attributes:
      address: of the door.
      board: that of the workers.
      said: what they said, but for links.
      values: of the server's properties.
    """

    def __init__(self, max_connections: int):
        options = ServeOptions(
            environment={"echo": Echo, "fails": Fails},
            max_connections=max_connections,
            processes=COUNT,
        )
        self.board = Board(COUNT)
        self.said: list[Any] = []
        self.values = {"level": 1}
        properties = Properties()
        properties.add("level", lambda: self.values["level"], self._set_level)
        properties.add("failing", lambda: 1 / 0)
        self._controls: list[MessagePipe] = []
        self._questions: list[MessagePipe] = []
        self._pipes: list[tuple[MessagePipe, MessagePipe, threading.Thread]] = []
        self._threads: list[threading.Thread] = []
        for index in range(COUNT):
            mine, its = MessagePipe.pair()
            answers, questions = MessagePipe.pair()
            made = Worker(options, its, questions, self.board, index, index + 1)
            self.board.rows[index].serial = index + 1
            self._controls.append(mine)
            self._start(made.run)
            self._start(answer_questions, properties, answers)
            self._questions.append(questions)
            hearing = threading.Thread(target=self._hear, args=(mine,))
            hearing.start()
            self._pipes.append((mine, its, hearing))
        self._door = socket.create_server(("localhost", 0))
        self.address = f"localhost:{self._door.getsockname()[1]}"

    def connect(self, index: int) -> Connection:
        """Connects a client to one of the workers."""

        def hand_over() -> None:
            accepted, _ = self._door.accept()
            with accepted:
                self._say(index, "client", descriptor=accepted.fileno())

        self._start(hand_over)
        return connect(self.address, transport="http2")

    def counted(self, name: str) -> int:
        """Returns what all workers have counted."""
        return sum(row.counted[COUNTED.index(name)] for row in self.board.rows)

    def end(self, index: int) -> None:
        """Ends a worker."""
        self.board.rows[index].clear()
        self._say(index, "levels", {})
        self._say(index, "stop", 0.0)

    def stop(self) -> None:
        """Ends the workers."""
        for index in range(COUNT):
            self.end(index)
            self._questions[index].close()
        for thread in self._threads:
            thread.join(SECONDS)
        assert not any(thread.is_alive() for thread in self._threads)
        self._door.close()
        for mine, its, hearing in self._pipes:
            mine.shut_down()
            hearing.join(SECONDS)
            mine.close()
            its.close()

    def _set_level(self, level: int) -> None:
        self.values["level"] = level

    def _start(self, target: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _say(self, index: int, *message: Any, descriptor: int | None = None) -> None:
        say(self._controls[index], *message, descriptor=descriptor)

    def _hear(self, control: MessagePipe) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                (what, *arguments), descriptor = hear(control)
                if what != "link":
                    self.said.append((what, *arguments))
                    continue
                serial, peer = arguments
                assert descriptor is not None
                self._say(serial - 1, "link", peer, descriptor=descriptor)
                os.close(descriptor)


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(max_connections=3)
    try:
        yield made
    finally:
        made.stop()


def test_worlds_are_spread_and_streams_reach_them_wherever_they_are(workers: Workers) -> None:
    with workers.connect(0) as first, workers.connect(1) as second:
        names = [create_world(first, {"environment": "echo"}) for _ in range(4)]
        assert {name.rpartition("-")[0] for name in names} == {"world-1", "world-2"}
        near, far = names[0], next(name for name in names if name.startswith("world-2"))
        for name in (near, far):
            with join_world(first, name) as env:
                assert env.reset().first()
                for value in range(5):
                    assert env.step({"value": value}).observation == {"value": value}
        # What is about a world goes there from any connection.
        for connection, name in zip((first, second) * 2, names, strict=True):
            destroy_world(connection, name)
        assert workers.board.total("worlds") == 0
        with pytest.raises(DmEnvRpcError, match="no world"):
            join_world(first, "world-2-77")
        with pytest.raises(DmEnvRpcError, match="no world 'world-9-1': the process"):
            join_world(first, "world-9-1")
        with pytest.raises(DmEnvRpcError, match="'nowhere'"):
            join_world(second, "nowhere")
        assert workers.counted("step") == 12


def test_errors_and_refusals_come_from_the_other_worker(workers: Workers) -> None:
    with workers.connect(0) as first:
        names = [create_world(first, {"environment": "fails"}) for _ in range(2)]
        far = next(name for name in names if name.startswith("world-2"))
        with join_world(first, far) as env:
            env.reset()
            with pytest.raises(DmEnvRpcError, match="broken in step"):
                env.step({"value": 1})
            with pytest.raises(DmEnvRpcError, match="join_world request is not allowed"):
                first.send(dm_env_rpc_pb2.JoinWorldRequest(world_name=far))
        assert settles(lambda: any(what == "error" for what, *_ in workers.said))
        with (
            workers.connect(1),
            workers.connect(1),
            workers.connect(0) as refused,
            pytest.raises(ConnectionLostError, match="limit of 3 streams"),
        ):
            create_world(refused)
        assert workers.counted("refused_streams") == 1


def test_a_worker_that_is_gone_is_told(workers: Workers) -> None:
    with workers.connect(0) as first, workers.connect(0) as second:
        names = [create_world(first, {"environment": "echo"}) for _ in range(2)]
        far = next(name for name in names if name.startswith("world-2"))
        env = join_world(first, far)
        workers.end(1)
        with pytest.raises(DmEnvRpcError, match="the process that it was in has ended"):
            second.send(dm_env_rpc_pb2.JoinWorldRequest(world_name=far))
        with pytest.raises(ConnectionLostError, match="stream's world was in has ended") as lost:
            env.reset()
        assert lost.value.code == "UNAVAILABLE"


def test_a_client_that_leaves_frees_its_place_at_the_other_worker(workers: Workers) -> None:
    first = workers.connect(0)
    names = [create_world(first, {"environment": "echo"}) for _ in range(2)]
    far = next(name for name in names if name.startswith("world-2"))
    join_world(first, far).reset()
    assert workers.board.total("agents") == 1
    first.close()
    assert settles(lambda: workers.board.total("agents") == 0)


def test_a_message_that_is_no_request_ends_a_forwarded_stream(workers: Workers) -> None:
    with workers.connect(0) as first:
        names = [create_world(first, {"environment": "echo"}) for _ in range(2)]
        join_world(first, next(name for name in names if name.startswith("world-2")))
        encoded = envelopes.encode_request(dm_env_rpc_pb2.StepRequest())
        pending = Pending(encoded._replace(message=encoded.message[:1] + b"\xff"))
        with pytest.raises(ConnectionLostError, match="not an EnvironmentRequest") as lost:
            first._pipeline.call(pending)
        assert lost.value.code == "INVALID_ARGUMENT"


def test_properties_are_those_of_the_servers_own_process(workers: Workers) -> None:
    with workers.connect(0) as one, workers.connect(1) as other:
        first, second = PropertiesExtension(one), PropertiesExtension(other)
        first["level"] = 7
        assert (second["level"], workers.values["level"]) == (7, 7)
        assert set(second.specs()) == {"level", "failing"}
        for key, text in (("nothing", "no property"), ("failing", "ZeroDivisionError: division")):
            with pytest.raises(DmEnvRpcError, match=text):
                second.read(key)
