"""Measures what an environment costs, and how many steps per second many of them reach."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, NamedTuple

import dm_env
import numpy as np

from dm_env_rpc_client import BatchedEnvironment
from dm_env_rpc_client.server import serve
from tests.benchmarks.cheap import PAYLOADS, Cheap
from tests.benchmarks.processes import process
from tests.benchmarks.rounds import alternate, timed
from tests.scale.fakes import Fake, fake

MAX_CONNECTIONS = 1024
"""What 1,000 environments need; the default of `serve` is 256."""

LATENCIES = (0.001, 0.005, 0.020)
STEP, ANY = "step", "send and recv"
COMPUTES, WAITS = "computes", "waits"

_FEW, _MANY = 16, 512
"""The environments that are stepped: what one costs is the slope.

With 128 instead, the processor's caches hold more of what a step needs than with 1,000: a step
takes a tenth less time."""

_LARGEST_KEPT = 32 << 20
"""Bytes up to which the allocator of glibc uses memory again (DEFAULT_MMAP_THRESHOLD_MAX)."""

_LONG_LATENCY = 0.015
"""All Steps are sent before the first answer comes."""

_SERVED, _SERVED_STEPS = 16, 10
_HELD, _MORE_HELD = 32, 160
_WARM_UP = 3
_TURN_SECONDS, _LATENCIES_OF_A_TURN = 0.03, 4


class Costs(NamedTuple):
    """What an environment costs.

    Attributes:
      client: seconds of the client's processor for a step of one of many environments.
      server: seconds of the server's processor for a step, without what the environment computes.
      client_bytes: memory of the client's process.
      server_bytes: memory of the server's process.
    """

    client: float
    server: float
    client_bytes: float
    server_bytes: float


@contextlib.contextmanager
def opened(address: str, count: int, payload: str, **settings: Any) -> Iterator[BatchedEnvironment]:
    """Opens environments with a payload, a stream each, and begins a sequence in each."""
    created = {"payload": payload, **settings}
    with BatchedEnvironment(address, count, created, timeout=60.0, num_batches=0) as envs:
        envs.reset()
        yield envs


def actions(count: int) -> dict[str, Any]:
    """Returns valid actions."""
    return {"action": np.ones(count, np.int32)}


class Busy(Cheap):
    """Computes for so many seconds of its processor in each step, and lets nobody else run.

    Args:
      payload: what it observes; a name of `PAYLOADS`.
      seconds: how long.
      waits: whether it waits for so many seconds instead, as for a program that computes elsewhere.
    """

    def __init__(self, payload: str, seconds: float = 0.0, waits: bool = False):
        super().__init__(payload)
        self._seconds = seconds
        self._waits = waits

    def step(self, action: Any) -> dm_env.TimeStep:
        if self._waits:
            time.sleep(self._seconds)  # It takes time to step.
            return super().step(action)
        ends = time.thread_time() + self._seconds
        while time.thread_time() < ends:
            pass
        return super().step(action)


class Usage(NamedTuple):
    """What a process has used: seconds of processors, and resident bytes now."""

    cpu: float
    memory: int


def _usage() -> Usage:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Usage(time.process_time(), pages * os.sysconf("SC_PAGE_SIZE"))


class Served:
    """A server of `Busy` environments in a process of its own.

    Attributes:
      address: where it serves.
    """

    def __init__(self, told: Pipe):
        self._told = told
        self.address: str = told.recv()

    def usage(self) -> Usage:
        """Returns what its process has used."""
        self._told.send("usage")
        found: Usage = self._told.recv()
        return found


def _be_a_server(told: Pipe) -> None:
    with serve(Busy, max_connections=MAX_CONNECTIONS) as server:
        told.send(server.address)
        while told.recv():
            told.send(_usage())


@contextlib.contextmanager
def served() -> Iterator[Served]:
    """Runs this package's server."""
    with process(_be_a_server) as told:
        yield Served(told)


def costs(payload: str, rounds: int) -> Costs:
    """Returns what an environment costs.

    Args:
      payload: what is observed, a name of `PAYLOADS`.
      rounds: how many turns each measurement has.
    """
    client, server = _client_seconds(payload, rounds), _server_seconds(payload, rounds)
    return Costs(client, server, *_held(payload))


def _client_seconds(payload: str, rounds: int) -> float:
    shape, dtype = PAYLOADS[payload]
    # A larger batch would be in new memory in each step.
    many = min(_MANY, _LARGEST_KEPT // (math.prod(shape) * np.dtype(dtype).itemsize))
    contenders = {}
    with fake(payload) as server, contextlib.ExitStack() as stack:
        server.answer_after(_LONG_LATENCY)
        for count in (_FEW, many):
            envs = stack.enter_context(opened(server.address, count, payload))
            contenders[str(count)] = timed(_stepping(envs), 1, clock=time.thread_time)
        of_few, of_many = (sample.median for sample in alternate(contenders, rounds).values())
    return (of_many - of_few) / (many - _FEW)


def _server_seconds(payload: str, rounds: int) -> float:
    found = []
    with served() as server, opened(server.address, _SERVED, payload) as envs:
        for _ in range(rounds):
            begin = server.usage().cpu
            for _ in range(_SERVED_STEPS):
                envs.step(actions(_SERVED))
            found.append(server.usage().cpu - begin)
    return statistics.median(found) / (_SERVED_STEPS * _SERVED)


def _be_a_client(told: Pipe, address: str, payload: str) -> None:
    with contextlib.ExitStack() as stack:
        while (count := told.recv()) is not None:
            envs = stack.enter_context(opened(address, count, payload))
            for _ in range(_WARM_UP):
                envs.step(actions(count))
            told.send(_usage())


def _held(payload: str) -> tuple[float, float]:
    """Returns the bytes of an environment in the client's process and in the server's."""
    found = []
    with served() as server, process(_be_a_client, server.address, payload) as client:
        for count in (_HELD, _MORE_HELD):
            client.send(count)
            found.append((client.recv().memory, server.usage().memory))
    (client_few, server_few), (client_more, server_more) = found
    return (client_more - client_few) / _MORE_HELD, (server_more - server_few) / _MORE_HELD


def _stepping(envs: BatchedEnvironment) -> Callable[[], int]:
    """Returns what steps all environments, waits for all, and returns how many steps those were."""
    valid = actions(envs.num_envs)

    def step() -> int:
        envs.step(valid)
        return envs.num_envs

    return step


def _rate(advance: Callable[[], int], latency: float, turns: int) -> float:
    """Returns the median of the steps per second in some turns.

    Args:
      advance: steps, and returns how many steps those were.
      latency: seconds that are not to be seen where a turn begins and ends.
      turns: how many.
    """
    found = []
    for _ in range(turns + 1):
        begin, steps, seconds = time.perf_counter(), 0, 0.0
        while seconds < _TURN_SECONDS + _LATENCIES_OF_A_TURN * latency:
            steps += advance()
            seconds = time.perf_counter() - begin
        found.append(steps / seconds)
    return statistics.median(found[1:])  # The first warms up.


def simulated_rates(
    server: Fake, payload: str, count: int, turns: int
) -> Iterator[tuple[float, str, float]]:
    """Steps environments of a fake server.

    Args:
      server: answers.
      payload: what is observed.
      count: the number of environments.
      turns: how many turns each measurement has.

    Yields:
      A latency; how the environments are stepped, `STEP` waits for all and `ANY` for any; and the
      steps per second.
    """
    server.answer_after(0.0)
    with opened(server.address, count, payload) as envs:

        def swap() -> int:
            _, arrived = envs.recv()
            envs.send(actions(len(arrived)), arrived)
            return len(arrived)

        for latency in LATENCIES:
            server.answer_after(latency)
            yield latency, STEP, _rate(_stepping(envs), latency, turns)
            envs.send(actions(count))
            yield latency, ANY, _rate(swap, latency, turns)
            envs.reset()  # Drops the Steps that are under way.


def real_rate(
    server: Served, payload: str, does: str, count: int, seconds: float, turns: int
) -> float:
    """Returns the steps per second of `step`, with environments of a real server.

    Args:
      server: answers.
      payload: what is observed.
      does: what the environments do in a step, `COMPUTES` or `WAITS`.
      count: the number of environments.
      seconds: how long they do.
      turns: how many turns the measurement has.
    """
    with opened(server.address, count, payload, seconds=seconds, waits=does == WAITS) as envs:
        return _rate(_stepping(envs), seconds, turns)
