"""Row 33: small messages that ask for much memory, on both ends; row 21 has single tensors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe
from typing import Any, Literal, NamedTuple

import grpc
import pytest

from dm_env_rpc_client import DmEnvRpcError, Limits, connect, dm_env_rpc_pb2, make, make_async
from dm_env_rpc_client.protocol.envelopes import EncodedRequest, decode_response
from dm_env_rpc_client.protocol.pipeline import Pipeline
from dm_env_rpc_client.server import Catch, serve
from dm_env_rpc_client.server.session import Session
from dm_env_rpc_client.testing import Request, Response, ScriptedServer
from dm_env_rpc_client.transports.grpc.server import GrpcListener
from dm_env_rpc_client.transports.net.status import PROCESS
from dm_env_rpc_client.transports.server_streams import ListenerOptions, ServerStream
from tests.reliability.hostile import bombs
from tests.reliability.hostile.served import Served
from tests.reliability.recording import Seen
from tests.reliability.scorecard import is_strict
from tests.support import forks
from tests.support.both_transports import forced, obey
from tests.support.stopwatch import own_seconds

SLACK = 64 << 20
SECONDS = 0.5 if is_strict() else 5.0
pytestmark = pytest.mark.row(21, 33)

SCALES = [pytest.param(4, id="quarter"), pytest.param(1, id="whole", marks=pytest.mark.soak)]


class _Bomber(ServerStream):
    """The server's end of a stream: creates and joins as usual, and answers once with a bomb."""

    may_wait = False

    def __init__(self, field: str, bomb: bytes):
        self._field = field
        self._bomb = bomb

    def answer(self, message: bytes) -> bytes:
        field = dm_env_rpc_pb2.EnvironmentRequest.FromString(message).WhichOneof("payload")
        if field == self._field:
            return self._bomb
        response = dm_env_rpc_pb2.EnvironmentResponse()
        getattr(response, str(field)).SetInParent()
        if field == "join_world":
            response.join_world.specs.CopyFrom(bombs.specs())
        return response.SerializeToString()

    def abandon(self) -> None:
        pass

    def close(self) -> None:
        pass


@contextlib.contextmanager
def bombing(field: str, bomb: bytes) -> Iterator[str]:
    """Runs a server that answers this kind of request with a bomb; yields its address."""
    options = ListenerOptions(lambda peer: _Bomber(field, bomb), 4)
    listener = GrpcListener(options, "localhost:0", None)
    try:
        yield listener.address
    finally:
        listener.stop(0.0)


def _number(message: bytes) -> int:
    """The number of the first field of a message, in one or two bytes."""
    return (message[0] & 0x7F | (message[1] << 7 if message[0] > 0x7F else 0)) >> 3


def _reset(address: str) -> None:
    with make(address) as env:
        env.reset()


async def _reset_async(address: str) -> None:
    async with await make_async(address) as env:
        await env.reset()


def _time_answers(kind: Any) -> list[float]:
    """Has the method `answer` of a class timed; the list gets the seconds of each call."""
    seconds = [0.0]
    answer = kind.answer

    def timed(self: Any, message: Any) -> Any:
        begin = own_seconds()
        try:
            return answer(self, message)
        finally:
            seconds.append(own_seconds() - begin)

    kind.answer = timed
    return seconds


def _be_a_client(address: str, transport: str, is_async: bool, told: Pipe) -> None:
    """Steps once when told to, and tells what came of it and how long the answers took."""
    obey(transport)
    seconds = _time_answers(Pipeline)
    # Everything is imported and used once before anything is measured.
    with serve(Catch) as server:
        asyncio.run(_reset_async(server.address)) if is_async else _reset(server.address)
    told.send("ready")
    told.recv()
    try:
        asyncio.run(_reset_async(address)) if is_async else _reset(address)
        text = "accepted"
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    told.send((text, max(seconds)))
    told.recv()


def bombed_client(address: str, is_async: bool = False) -> tuple[str, float, int]:
    """What came of a client in a process of its own: text, slowest answer, memory in bytes."""
    with forks.child(_be_a_client, address, forced(), is_async) as (pid, pipe):
        assert pipe.recv() == "ready"
        client = Served("", pid)
        before = client.watch_memory()
        pipe.send("go")
        text, seconds = pipe.recv()
        return text, seconds, client.peak() - before


def check(bomb: bytes, grown: int, seconds: float, seen: Seen) -> None:
    """Holds the end that got a bomb to its bounds."""
    # grpcio keeps a message in pieces of its own beside the one that it hands over.
    copies = 4 if forced() == "http2" else 5
    most = copies * len(bomb) + SLACK
    seen(
        bombs=1,
        refused_after_s=seconds,
        message_mib=len(bomb) / 2**20,
        memory_mib=grown / 2**20,
        memory_of_what_is_allowed_percent=100 * grown / most,
    )
    assert grown <= most, f"{grown / 1e6:.0f} MB for {len(bomb) / 1e6} MB"
    assert seconds < SECONDS


TO_COROUTINES = [
    "64 observations of one element each",
    "16 MB of empty Any",
    "100,000 specs",
    "an error text of 100 MB",
]
"""All answers are decoded by the same code; these go to an AsyncConnection, too."""


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    ("name", "is_async"),
    [*((name, False) for name in bombs.answers(1)), *((name, True) for name in TO_COROUTINES)],
)
def test_row_33_answers(name: str, is_async: bool, scale: int, seen: Seen) -> None:
    """Row 33: an answer takes at most 4 times its size and 64 MiB, and is refused in 0.5 s."""
    bomb = bombs.answers(scale)[name]()
    field = dm_env_rpc_pb2.EnvironmentResponse.DESCRIPTOR.fields_by_number[_number(bomb)].name
    kind = "step" if field == "error" else field
    with bombing(kind, bomb) as address:
        text, seconds, grown = bombed_client(address, is_async)
    check(bomb, grown, seconds, seen)
    assert text != "accepted"
    assert len(text) < 2 * Limits().error_bytes


def _be_a_server(transport: Literal["http2", "grpc"], told: Pipe) -> None:
    """Tells, when asked, how long its slowest answer took."""
    seconds = _time_answers(Session)
    with serve(lambda **settings: Catch(), transport=transport) as server:
        with make(server.address) as env:
            env.reset()
        told.send(server.address)
        with contextlib.suppress(EOFError):
            while told.recv():
                told.send(max(seconds))


class _Bombed(NamedTuple):
    """A server in a process of its own."""

    served: Served
    pipe: Pipe

    @property
    def address(self) -> str:
        return self.served.address

    def slowest(self) -> float:
        """How long the slowest answer took from the arrival of its request, in seconds."""
        self.pipe.send(True)
        seconds: float = self.pipe.recv()
        return seconds


@pytest.fixture
def server(transport: Literal["http2", "grpc"]) -> Iterator[_Bombed]:
    with forks.child(_be_a_server, transport) as (pid, pipe):
        yield _Bombed(Served(pipe.recv(), pid), pipe)


def refused(server: Served, name: str, scale: int) -> tuple[bytes, int]:
    """Has a server refuse a request; returns its bytes and how much memory it took.

    The connection is as good as before.
    """
    bomb = bombs.requests(scale)[name]()
    field = dm_env_rpc_pb2.EnvironmentRequest.DESCRIPTOR.fields_by_number[_number(bomb)].name
    request = EncodedRequest(field, bomb, lambda message: decode_response(message, field))
    with connect(server.address, request_timeout=60) as connection:
        if name.startswith("step"):
            world = connection.send(dm_env_rpc_pb2.CreateWorldRequest()).world_name
            connection.send(dm_env_rpc_pb2.JoinWorldRequest(world_name=world))
            connection.send(dm_env_rpc_pb2.StepRequest())
        before = server.watch_memory()
        with pytest.raises(DmEnvRpcError) as caught:
            connection.submit(request).result(60)
        grown = server.peak() - before
        assert connection.send(dm_env_rpc_pb2.CreateWorldRequest()).world_name
    assert caught.value.code_name in ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT"), caught.value
    assert len(caught.value.message) < 2 * Limits().error_bytes
    return bomb, grown


REQUESTS = pytest.mark.parametrize("name", list(bombs.requests(1)))


@pytest.mark.parametrize("scale", SCALES)
@REQUESTS
def test_row_33_requests(server: _Bombed, name: str, scale: int, seen: Seen) -> None:
    """Row 33: a request takes at most 4 times its size and 64 MiB, and is refused in 0.5 s."""
    bomb, grown = refused(server.served, name, scale)
    check(bomb, grown, server.slowest(), seen)


def test_row_33_settings_that_stay(server: _Bombed) -> None:
    """Row 33: what a server holds for all its worlds is bounded too."""
    setting = dm_env_rpc_pb2.Tensor(shape=[2_000_000])
    setting.doubles.array.append(1.5)
    create = dm_env_rpc_pb2.CreateWorldRequest(settings={"wide": setting})
    before = server.served.watch_memory()
    worlds: list[str] = []
    with connect(server.address) as connection:
        with pytest.raises(DmEnvRpcError, match=r"held_bytes") as refused:
            worlds.extend(connection.send(create).world_name for _ in range(100))
        assert refused.value.code_name == "RESOURCE_EXHAUSTED"
        assert len(worlds) == Limits().held_bytes // 16_000_000
        assert server.served.peak() - before <= Limits().held_bytes + SLACK
        # A world that ends makes room; one whose agent is reset with other settings keeps it.
        connection.send(dm_env_rpc_pb2.DestroyWorldRequest(world_name=worlds.pop()))
        name = connection.send(create).world_name
        connection.send(dm_env_rpc_pb2.JoinWorldRequest(world_name=name))
        for _ in range(20):
            connection.send(dm_env_rpc_pb2.ResetRequest(settings={"wide": setting}))
        with pytest.raises(DmEnvRpcError, match="held_bytes"):
            connection.send(dm_env_rpc_pb2.ResetRequest(settings={"wider": setting}))
        assert connection.send(dm_env_rpc_pb2.StepRequest()).state == dm_env_rpc_pb2.RUNNING


# Just above the limit, and the scorecard's.
GZIPPED = [130 << 20, pytest.param(256 << 20, marks=pytest.mark.soak)]


def gunzipped() -> int:
    """What may be decompressed: nothing over http2; by grpcio as much as a message may have."""
    return 0 if forced() == "http2" else Limits().message_bytes


@pytest.mark.parametrize("size", GZIPPED)
def test_row_21_an_answer_that_gzip_makes_large(size: int, seen: Seen) -> None:
    """Row 21: 261 KB of gzip that holds 256 MiB: refused, and bounded memory."""
    large = Response(create_world={"world_name": "w" * size})

    def script(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        context.set_compression(grpc.Compression.Gzip)
        next(requests)
        yield large

    with ScriptedServer(script) as server:
        text, seconds, grown = bombed_client(server.address)
    seen(gzip_bombs=1, gzip_refused_after_s=seconds, gzip_memory_mib=grown / 2**20)
    assert text != "accepted"
    assert len(text) < 2000
    assert grown <= gunzipped() + SLACK


@pytest.mark.parametrize("size", GZIPPED)
def test_row_21_a_request_that_gzip_makes_large(server: _Bombed, size: int, seen: Seen) -> None:
    """Row 21: 261 KB of gzip that holds 256 MiB: refused, and bounded memory."""
    large = Request(join_world={"world_name": "w" * size}).SerializeToString()
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(
        server.address, options, compression=grpc.Compression.Gzip
    ) as channel:
        before = server.served.watch_memory()
        process: Any = channel.stream_stream(PROCESS)
        with pytest.raises(grpc.RpcError) as refused:
            next(process(iter([large]), timeout=60))
    grown = server.served.peak() - before
    seen(gzip_bombs=1, gzip_memory_mib=grown / 2**20)
    expected = "UNIMPLEMENTED" if forced() == "http2" else "RESOURCE_EXHAUSTED"
    assert refused.value.code().name == expected, refused.value
    assert grown <= gunzipped() + SLACK


def test_limits_can_be_raised_on_both_ends() -> None:
    """What is refused by default arrives with other limits."""
    setting = dm_env_rpc_pb2.Tensor(shape=[4_000_000])
    setting.doubles.array.append(1.5)
    wider = Limits(expanded_bytes=64 << 20)
    received = {}

    def factory(**settings: Any) -> Catch:
        received.update(settings)
        return Catch()

    with serve(factory, limits=wider) as server, make(server.address, {"wide": setting}):
        assert received["wide"].nbytes == 32_000_000
    names = dm_env_rpc_pb2.StepResponse(
        state=dm_env_rpc_pb2.RUNNING,
        observations={100: dm_env_rpc_pb2.Tensor(shape=[-1], strings={"array": ["a"] * 600_000})},
    )
    answer = dm_env_rpc_pb2.EnvironmentResponse(step=names).SerializeToString()
    limits = Limits(strings=600_000)
    with (
        bombing("step", answer) as address,
        make(address, limits=limits, requested_observations=["texts"]) as env,
    ):
        assert env.reset().observation["texts"].shape == (600_000,)
