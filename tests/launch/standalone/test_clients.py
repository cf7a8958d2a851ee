"""Clients that nobody here wrote, and what threads of the one-file server do for them."""

from __future__ import annotations

import concurrent.futures
import json
import queue
import subprocess
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from dm_env_rpc.v1 import connection, dm_env_adaptor

from dm_env_rpc_client import ConnectionLostError, dm_env_rpc_pb2, make
from dm_env_rpc_client.server import Tls, serve
from dm_env_rpc_client.transports.net.status import PROCESS
from tests.launch.standalone import hosted
from tests.launch.standalone.interpreters import NEWEST, OLDEST, interpreter, served
from tests.peers.building import MissingToolchainError
from tests.peers.servers import TRIALS
from tests.support.certificates import self_signed
from tests.support.groups import skip
from tests.support.scripted import settles
from tests.support.stopwatch import Stopwatch

LARGE = 20_000_000
CONTENTS = bytes(range(250)) * (LARGE // 250)
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

Request = dm_env_rpc_pb2.EnvironmentRequest
Response = dm_env_rpc_pb2.EnvironmentResponse
CREATE = Request(create_world={})


@pytest.fixture(params=[OLDEST, NEWEST])
def python(request: pytest.FixtureRequest) -> str:
    return interpreter(request.param)


@pytest.fixture(params=[OLDEST, NEWEST, "own"])
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """The one file, and this package's own server: the same holds for both."""
    if request.param == "own":
        with serve(hosted.Large) as own:
            yield own.address
    else:
        with served(interpreter(request.param), "Large") as running:
            yield running.address


def requests_of(world: str) -> list[Request]:
    step = Request(step={"requested_observations": [1]})
    return [Request(join_world={"world_name": world}), step]


def echoed(response: Response) -> bytes:
    assert not response.HasField("error"), response.error.message
    return response.step.observations[1].uint8s.array


def process(channel: Any) -> Any:
    return channel.stream_stream(
        PROCESS,
        request_serializer=Request.SerializeToString,
        response_deserializer=Response.FromString,
    )


class Call:
    """A stream of grpcio, on which one request after another is asked."""

    def __init__(self, channel: Any, **options: Any):
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self.stream = process(channel)(iter(self._requests.get, None), **options)

    def ask(self, request: Request) -> Response:
        self._requests.put(request)
        answered: Response = next(self.stream)
        return answered

    def end(self) -> None:
        self._requests.put(None)


def step_of(contents: bytes) -> Request:
    action = dm_env_rpc_pb2.Tensor(uint8s={"array": contents}, shape=[len(contents)])
    return Request(step={"actions": {1: action}, "requested_observations": [1]})


def test_grpcio_with_threads(server: str) -> None:
    with grpc.insecure_channel(server, OPTIONS) as channel:
        call = Call(channel, timeout=60)
        world = call.ask(CREATE).create_world.world_name
        for request in requests_of(world):
            assert not call.ask(request).HasField("error")
        assert echoed(call.ask(step_of(CONTENTS))) == CONTENTS
        call.stream.cancel()
        # The agent of the cancelled stream has left: another one can join.
        other = Call(channel, timeout=60)
        assert settles(lambda: other.ask(requests_of(world)[0]).HasField("join_world"))
        other.end()
        short = process(channel)(iter(()), timeout=5)
        assert list(short) == []
        with pytest.raises(grpc.RpcError) as over:
            next(Call(channel, timeout=0.3).stream)
        assert over.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED

        def play(number: int) -> None:
            one = Call(channel, timeout=60)
            for request in requests_of(one.ask(CREATE).create_world.world_name):
                assert not one.ask(request).HasField("error")
            for step in range(50):
                contents = bytes([number, step])
                assert echoed(one.ask(step_of(contents))) == contents
            one.end()

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            list(pool.map(play, range(16)))


@pytest.mark.slow
@pytest.mark.parametrize("language", TRIALS)
def test_clients_in_other_languages(server: str, language: str) -> None:
    """20 MB there and back, a cancelled stream, a deadline, 16 streams at once."""
    try:
        command = [*TRIALS[language](), server, str(LARGE)]
    except MissingToolchainError as error:
        skip(f"{language} peer", str(error))
    tried = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert tried.returncode == 0, tried.stderr
    late = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
    assert json.loads(tried.stdout) == {"bytes": LARGE, "late": late, "steps": 16 * 50}


def test_the_reference_client(python: str) -> None:
    with (
        served(python, "Catch") as running,
        grpc.insecure_channel(running.address) as channel,
        connection.Connection(channel) as opened,
    ):
        env, name = dm_env_adaptor.create_and_join_world(opened, {"rows": 4}, {})
        with env:
            assert env.reset().first()
            for _ in range(2):
                timestep = env.step({"paddle": np.int32(1)})
                assert timestep.observation["board"].sum() == 5
            assert env.step({"paddle": np.int32(1)}).last()
        assert name == "world-1"


def test_a_slow_step_delays_nobody_else_and_environments_keep_their_thread(python: str) -> None:
    with served(python, "Threads") as running, grpc.insecure_channel(running.address) as channel:
        # Two streams of one connection, the first of which is answered by the thread that reads.
        seconds: list[float] = []
        has_stepped, over = threading.Event(), threading.Event()

        def play(delay: float, steps: Iterable[object]) -> None:
            call = Call(channel)
            world = call.ask(CREATE).create_world.world_name
            join, step = requests_of(world)
            call.ask(join)
            threads = set()
            for _ in steps:
                step.step.actions[1].doubles.array[:] = [delay]
                stopwatch = Stopwatch()
                answer = call.ask(step)
                if not delay:
                    seconds.append(stopwatch.net)
                has_stepped.set()
                assert not answer.HasField("error"), answer.error.message
                threads.add(answer.step.observations[1].int64s.array[0])
            assert threads == {1}  # That of the constructor.
            call.end()

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            slow = pool.submit(play, 0.6, iter(over.is_set, True))
            try:
                assert has_stepped.wait(10)  # The slow stream is the first of the connection.
                play(0.0, range(20))
            finally:
                over.set()
            slow.result()
        assert sorted(seconds)[len(seconds) // 2] < 0.5


@pytest.mark.slow
def test_keepalive_finds_a_server_alive_that_steps_for_long(python: str) -> None:
    with served(python, "Threads") as running, make(running.address, request_timeout=60) as env:
        env.reset()
        assert env.step({"seconds": 12.0}).mid()


@pytest.mark.certificates
def test_tls_and_a_token(python: str, tmp_path: Path) -> None:
    key, certificate = self_signed(tmp_path)
    (tmp_path / "token").write_text("s3cret\n")
    options = ["--token-file", str(tmp_path / "token"), "--cert", str(certificate)]
    with served(python, "Large", *options, "--key", str(key)) as running:
        credentials = Tls(ca=str(certificate))
        with make(running.address, credentials=credentials, token="s3cret") as env:
            env.reset()
            sent = np.frombuffer(CONTENTS, np.uint8)
            assert np.array_equal(env.step({"bytes": sent}).observation["bytes"], sent)
        for token in (None, "wrong"):
            with pytest.raises(ConnectionLostError, match="UNAUTHENTICATED"):
                make(running.address, credentials=credentials, token=token)
