"""Clients that nobody here wrote, and what threads of the one-file server do for them."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from dm_env_rpc_client import ConnectionLostError, dm_env_rpc_pb2, make
from dm_env_rpc_client.server import Tls
from dm_env_rpc_client.transports.status import PROCESS
from tests.certificates import self_signed
from tests.reliability.hostile.served import Served
from tests.standalone.interpreters import NEWEST, OLDEST, interpreter, served

LARGE = 20_000_000
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

Request = dm_env_rpc_pb2.EnvironmentRequest
Response = dm_env_rpc_pb2.EnvironmentResponse


@pytest.fixture(params=[OLDEST, NEWEST])
def python(request: pytest.FixtureRequest) -> str:
    return interpreter(request.param)


@pytest.fixture
def server(python: str) -> Iterator[Served]:
    with served(python, "Large") as running:
        yield running


def requests_of(world: str) -> list[Request]:
    step = Request()
    step.step.requested_observations.append(1)
    large = Request()
    large.CopyFrom(step)
    tensor = large.step.actions[1]
    tensor.uint8s.array = bytes(range(256)) * (LARGE // 256)
    tensor.shape.append(len(tensor.uint8s.array))
    join = Request()
    join.join_world.world_name = world
    return [join, step, large]


def create() -> Request:
    request = Request()
    request.create_world.SetInParent()
    return request


def check_large(response: Response) -> None:
    echoed = response.step.observations[1].uint8s.array
    assert echoed == bytes(range(256)) * (LARGE // 256)


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


def test_grpcio_with_threads(server: Served) -> None:
    with grpc.insecure_channel(server.address, OPTIONS) as channel:
        call = Call(channel, timeout=60)
        world = call.ask(create()).create_world.world_name
        answers = [call.ask(request) for request in requests_of(world)]
        check_large(answers[-1])
        call.stream.cancel()
        # The agent of the cancelled stream has left: another one can join.
        with make(server.address):
            pass
        short = process(channel)(iter(()), timeout=5)
        assert list(short) == []
        with pytest.raises(grpc.RpcError) as over:
            next(Call(channel, timeout=0.3).stream)
        assert over.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_grpcio_with_asyncio_and_sixteen_streams(server: Served) -> None:
    async def play(channel: Any) -> None:
        call = process(channel)()
        await call.write(create())
        world = (await call.read()).create_world.world_name
        for request in requests_of(world)[:2]:
            await call.write(request)
            assert not (await call.read()).HasField("error")
        for number in range(50):
            request = Request()
            request.step.actions[1].uint8s.array = bytes([number] * 5)
            request.step.actions[1].shape.append(5)
            request.step.requested_observations.append(1)
            await call.write(request)
            answer = await call.read()
            assert answer.step.observations[1].uint8s.array == bytes([number] * 5)
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK

    async def play_all() -> None:
        async with grpc.aio.insecure_channel(server.address, OPTIONS) as channel:
            await asyncio.gather(*(play(channel) for _ in range(16)))

    asyncio.run(play_all())


def test_the_reference_client(python: str) -> None:
    connection = pytest.importorskip("dm_env_rpc.v1.connection")
    adaptor = pytest.importorskip("dm_env_rpc.v1.dm_env_adaptor")
    with served(python, "Catch") as running:
        channel = grpc.insecure_channel(running.address)
        with connection.Connection(channel) as opened:
            env, name = adaptor.create_and_join_world(opened, {"rows": 4}, {})
            with env:
                assert env.reset().first()
                for _ in range(2):
                    timestep = env.step({"paddle": np.int32(1)})
                    assert timestep.observation["board"].sum() == 4 // 4 * 5
                assert env.step({"paddle": np.int32(1)}).last()
            assert name == "world-1"
        channel.close()


def test_a_slow_step_delays_nobody_else_and_environments_keep_their_thread(python: str) -> None:
    with served(python, "Threads") as running, grpc.insecure_channel(running.address) as channel:
        # Two streams of one connection, the first of which is answered by the thread that reads.
        done = threading.Event()
        seconds: list[float] = []

        def play(delay: float, steps: int) -> None:
            call = Call(channel)
            world = call.ask(create()).create_world.world_name
            join, step, _ = requests_of(world)
            call.ask(join)
            threads = set()
            for _ in range(steps):
                step.step.actions[1].doubles.array[:] = [delay]
                began = time.monotonic()
                answer = call.ask(step)
                if not delay:
                    seconds.append(time.monotonic() - began)
                assert not answer.HasField("error"), answer.error.message
                threads.add(answer.step.observations[1].int64s.array[0])
            assert threads == {1}  # That of the constructor.
            call.end()

        def play_slowly() -> None:
            play(0.6, 4)
            done.set()

        slow = threading.Thread(target=play_slowly)
        slow.start()
        time.sleep(0.1)  # The slow stream is the first of the connection.
        play(0.0, 20)
        assert not done.is_set()
        slow.join()
        assert done.is_set()
        assert sorted(seconds)[len(seconds) // 2] < 0.5


@pytest.mark.slow
def test_keepalive_finds_a_server_alive_that_steps_for_long(python: str) -> None:
    with served(python, "Threads") as running:
        env = make(running.address, request_timeout=60)
        with env:
            env.reset()
            assert env.step({"seconds": 12.0}).mid()


@pytest.mark.certificates
def test_tls_and_a_token(python: str, tmp_path: Path) -> None:
    key, certificate = self_signed(tmp_path)
    (tmp_path / "token").write_text("s3cret\n")
    options = ["--token-file", str(tmp_path / "token"), "--cert", str(certificate)]
    with served(python, "Catch", *options, "--key", str(key)) as running:
        credentials = Tls(ca=str(certificate))
        with make(running.address, credentials=credentials, token="s3cret") as env:
            assert env.reset().first()
            assert env.step({"paddle": 1}).mid()
        for token in (None, "wrong"):
            with pytest.raises(ConnectionLostError, match="UNAUTHENTICATED"):
                make(running.address, credentials=credentials, token=token)


@pytest.mark.certificates
def test_large_messages_over_tls(python: str, tmp_path: Path) -> None:
    key, certificate = self_signed(tmp_path)
    options = ["--cert", str(certificate), "--key", str(key)]
    credentials = Tls(ca=str(certificate))
    with (
        served(python, "Large", *options) as running,
        make(running.address, credentials=credentials) as env,
    ):
        env.reset()
        sent = np.resize(np.arange(251, dtype=np.uint8), LARGE)
        assert np.array_equal(env.step({"bytes": sent}).observation["bytes"], sent)


def test_other_machines_need_a_token(python: str) -> None:
    refused = pytest.raises(AssertionError, match="ended with 1")
    with refused, served(python, "Catch", address="0.0.0.0:0"):
        pass
