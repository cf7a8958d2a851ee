"""Many clients of all kinds on one HTTP/2 listener, with answers that take all kinds of time."""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest

from dm_env_rpc_client.transports.http2.server import answering
from dm_env_rpc_client.transports.net import status
from dm_env_rpc_client.transports.server_streams import StreamStatusError
from tests.support.scripted import settles
from tests.transports.hosts import Host, open_http2_stream
from tests.transports.raw_client import RawClient, request, requests

WAIT_SECONDS = 100.0
MILLISECONDS = [0, 0, 0, 0, 0, 0, 0, 1, 1, 20]


class Meetings:
    """Where two streams wait for each other."""

    def __init__(self, host: Host):
        self._host = host
        self._met = threading.Condition()
        self._waiting: dict[bytes, threading.Event] = {}

    def meet(self, place: bytes) -> bytes:
        """Waits until another stream has come to the same place."""
        stream = self._host.answering.stream
        stream.may_wait = True
        with self._met:
            met = self._waiting.pop(place, None)
            if met is not None:
                met.set()
                return place
            met = self._waiting[place] = threading.Event()
        while not met.wait(0.01):
            if "abandon" in stream.events:
                with self._met:
                    if self._waiting.get(place) is met:
                        del self._waiting[place]
                raise StreamStatusError("CANCELLED", "the client is gone")
        return place


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    # So that streams change hands more often.
    monkeypatch.setattr(answering, "_LINGER_SECONDS", 0.01)
    with Host(max_streams=300) as made:
        made.scripts["meet"] = Meetings(made).meet
        yield made
    assert made.all_closed_once()


def answer_to(message: bytes) -> bytes:
    name, _, rest = message.partition(b":")
    return rest.partition(b",")[2] if name == b"sleep" else rest


def messages_of(seed: int, count: int) -> list[bytes]:
    """Requests of mixed durations and sizes."""
    rng = random.Random(seed)
    sizes = [5, 5, 5, 300, 70_000]
    return [
        b"sleep:%d,%d,%d,%s" % (rng.choice(MILLISECONDS), seed, number, bytes(rng.choice(sizes)))
        for number in range(count)
    ]


def play_http2(address: str, messages: list[bytes], depth: int) -> None:
    """Sends `depth` ahead on the package's own stream, and checks each answer."""
    stream = open_http2_stream(address)
    try:
        stream.write(*messages[:depth])
        for index, message in enumerate(messages):
            answer = stream.read(WAIT_SECONDS, False)
            assert answer is not None, "no answer in time"
            assert bytes(answer) == answer_to(message)
            if index + depth < len(messages):
                stream.write(messages[index + depth])
    finally:
        stream.close(5.0)


def play_grpc(channel: grpc.Channel, messages: list[bytes]) -> None:
    stub: Any = channel.stream_stream(status.PROCESS)
    answers = list(stub(iter(messages), timeout=WAIT_SECONDS))
    assert answers == list(map(answer_to, messages))


async def play_aio(channel: grpc.aio.Channel, messages: list[bytes]) -> None:
    async def ask() -> AsyncIterator[bytes]:
        for message in messages:
            yield message

    stub: Any = channel.stream_stream(status.PROCESS)
    answers = [answer async for answer in stub(ask(), timeout=WAIT_SECONDS)]
    assert answers == list(map(answer_to, messages))


def play_aio_streams(address: str, seeds: range, count: int) -> None:
    async def run() -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            await asyncio.gather(*(play_aio(channel, messages_of(seed, count)) for seed in seeds))

    asyncio.run(run())


def vanish(address: str, seed: int) -> None:
    """Asks for much, and is gone in the middle of it."""
    for turn in range(10):
        with RawClient(address) as client:
            streams = range(1, 9, 2)
            for number in streams:
                client.send(request(number) + requests(number, *messages_of(seed + turn, 20)))
            client.send(requests(1, b"meet:nobody"))
            client.read(0.001 * (turn % 5))


@pytest.mark.parametrize(
    ("clients", "count"), [(4, 40), pytest.param(12, 250, marks=pytest.mark.soak)]
)
def test_all_kinds_of_clients_at_once(host: Host, clients: int, count: int) -> None:
    address = host.address
    of_http2, of_grpc = ([b"meet:%d,%d" % (pair, n) for n in range(count)] for pair in range(2))
    with (
        concurrent.futures.ThreadPoolExecutor(200) as pool,
        grpc.insecure_channel(address) as shared,
    ):
        tasks = []
        for index in range(clients):
            seed = 1_000 * index
            for depth in (1, 16):
                messages = messages_of(seed + depth, count)
                tasks.append(pool.submit(play_http2, address, messages, depth))
            tasks.append(pool.submit(play_grpc, shared, messages_of(seed + 2, count)))
            tasks.append(pool.submit(play_grpc, shared, messages_of(seed + 3, count)))
            tasks.append(pool.submit(vanish, address, seed + 100))
        tasks.append(pool.submit(play_aio_streams, address, range(7_000, 7_000 + clients), count))
        for task in tasks:
            task.result(WAIT_SECONDS)
        # The streams that vanished wait for nobody any more.
        assert host.all_closed_once()
        pairs = [pool.submit(play_http2, address, of_http2, 1) for _ in range(2)]
        pairs += [pool.submit(play_grpc, shared, of_grpc) for _ in range(2)]
        for task in pairs:
            task.result(WAIT_SECONDS)
    assert host.all_closed_once()
    assert settles(lambda: host.listener._streams.room.count == 0)
