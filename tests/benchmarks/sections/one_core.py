"""What a step costs on one core, in processor time of both ends.

Where a core is free, both ends of this package look for a while before they sleep, so that a step
waits for no process to wake. On a machine whose cores are all busy, a step takes what it computes.
So everything here runs on one processor, where nothing looks, and is measured by the clocks of the
processes: the client's, and those of the processes that have the environments.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv

from dm_env_rpc_client import BatchedEnvironment, make
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.server import serve
from tests.benchmarks.cheap import PAYLOADS, Cheap
from tests.benchmarks.processes import one_processor, process
from tests.benchmarks.results import Section
from tests.benchmarks.rounds import Contender, timed
from tests.benchmarks.sections.serving import CheapGym, vector_step
from tests.benchmarks.settings import Settings

ASYNC = "AsyncVectorEnv"
PIPE = "multiprocessing Pipe"
OURS = "make"
OURS_UNIX = "make, a unix socket"
PROXY = "Remote-v0"
FLOOR = "TCP alone, nothing checked"
BATCHED = "BatchedEnvironment"
VECTOR = "RemoteVectorEnv"
VECTOR_OF_GYMNASIUM = "RemoteVectorEnv of Gymnasium's"

_SINGLE = ("float32 [1]", "uint8 84x84x4")
_MOST_OF_ASYNC = {OURS: 1.0, OURS_UNIX: 0.8, PROXY: 1.1}
_BATCHES = {
    (16, "float32 [1]"): 0.15,
    (64, "float32 [1]"): 0.04,
    (16, "uint8 84x84x4"): 0.25,
    (16, "float32 84x84x4"): 0.5,
}
"""The rows of a batch, and what a step of all may cost as part of AsyncVectorEnv's."""

_STEPS = 200
_STEPS_OF_ALL = 1600
"""Environment steps of one turn of a batch."""

_REQUEST_BYTES, _ANSWER_BYTES = 36, 62
"""What a step takes on the wire beside the elements of its observation."""


class _Contenders:
    """Starts what is compared, and measures the processor time of all processes with a part in it.

    Args:
      stack: ends the processes.
    """

    def __init__(self, stack: contextlib.ExitStack):
        self._stack = stack

    def started(self, target: Callable[..., None], *arguments: Any) -> tuple[Any, int]:
        """Starts a process; returns what it tells first, and its id."""
        told = self._stack.enter_context(process(_tell_id, target, *arguments))
        pid: int = told.recv()
        return (told.recv() if target is not _be_behind_a_pipe else told), pid

    def timed(self, step: Callable[[], object], pids: list[int], count: int) -> Contender:
        """Returns a contender whose seconds are those of this process and of others."""
        clocks = [~pid << 3 | 2 for pid in pids]  # As Linux makes them of the id of a process.

        def spent() -> float:
            return time.process_time() + sum(map(time.clock_gettime, clocks))

        return timed(step, count, clock=spent)

    def asynchronous(self, payload: str, count: int) -> tuple[Callable[[], object], list[int]]:
        """Steps of AsyncVectorEnv, and the ids of its processes."""
        envs = AsyncVectorEnv([functools.partial(CheapGym, payload)] * count)
        return vector_step(self._stack, envs), [each.pid or 0 for each in envs.processes]


def _tell_id(told: Pipe, target: Callable[..., None], *arguments: Any) -> None:
    told.send(os.getpid())
    target(told, *arguments)


def _serve(told: Pipe, factory: Callable[[], Any], address: str = "localhost:0") -> None:
    with serve(factory, address) as server:
        told.send(server.address)
        told.recv()


def _be_behind_a_pipe(told: Pipe, payload: str) -> None:
    environment = CheapGym(payload)
    while (action := told.recv()) is not None:
        told.send(environment.step(action))


def _be_the_floor(told: Pipe, size: int) -> None:
    with socket.create_server(("localhost", 0)) as listener:
        told.send(listener.getsockname())
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            answer = bytes(_ANSWER_BYTES + size)
            while connection.recv(_REQUEST_BYTES, socket.MSG_WAITALL):
                connection.sendall(answer)


def _floor(stack: contextlib.ExitStack, address: tuple[str, int], size: int) -> Callable[[], None]:
    connection = stack.enter_context(socket.create_connection(address[:2]))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    request, total = bytes(_REQUEST_BYTES), _ANSWER_BYTES + size

    def step() -> None:
        connection.sendall(request)
        connection.recv(total, socket.MSG_WAITALL)

    return step


def _proxy(stack: contextlib.ExitStack, address: str) -> Callable[[], object]:
    env: Any = gymnasium.make("dm_env_rpc_client.gymnasium:Remote-v0", address=address)
    stack.callback(env.close)
    env.reset(seed=0)
    return lambda: env.step(1)


def one_core(settings: Settings) -> Section:
    """A step of one environment in another process, on one processor."""
    rows = []
    for payload in _SINGLE[: 1 if settings.is_quick else None]:
        with one_processor(), contextlib.ExitStack() as stack:
            own = _Contenders(stack)
            contenders = {ASYNC: own.timed(*own.asynchronous(payload, 1), _STEPS)}
            pipe, pid = own.started(_be_behind_a_pipe, payload)
            contenders[PIPE] = own.timed(lambda p=pipe: (p.send(1), p.recv()), [pid], _STEPS)  # type: ignore[misc]
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            cheap = functools.partial(Cheap, payload)
            for name, where in ((OURS, "localhost:0"), (OURS_UNIX, f"unix:{folder}/server")):
                address, pid = own.started(_serve, cheap, where)
                env = stack.enter_context(make(address))
                env.reset()
                step = functools.partial(env.step, {"action": 1})
                contenders[name] = own.timed(step, [pid], _STEPS)
            address, pid = own.started(_serve, functools.partial(CheapGym, payload))
            contenders[PROXY] = own.timed(_proxy(stack, address), [pid], _STEPS)
            shape, dtype = PAYLOADS[payload]
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            address, pid = own.started(_be_the_floor, size)
            contenders[FLOOR] = own.timed(_floor(stack, address, size), [pid], _STEPS)
            rows.append(settings.row(payload, contenders, f"one core, {payload}"))
    targets = [
        row.at_most(name, ASYNC, limit) for row in rows for name, limit in _MOST_OF_ASYNC.items()
    ]
    title = "A step of one environment on one core, processor time of both ends"
    return Section("one-core", title, rows, targets)


def one_core_batched(settings: Settings) -> Section:
    """A step of all rows of a batch, on one processor."""
    rows, targets = [], []
    for (count, payload), limit in list(_BATCHES.items())[: 1 if settings.is_quick else None]:
        with one_processor(), contextlib.ExitStack() as stack:
            own, steps = _Contenders(stack), max(20, _STEPS_OF_ALL // count)
            contenders = {ASYNC: own.timed(*own.asynchronous(payload, count), steps)}
            address, pid = own.started(_serve, functools.partial(Cheap, payload))
            batched = stack.enter_context(BatchedEnvironment(address, count))
            batched.reset()
            step = functools.partial(batched.step, {"action": np.ones(count, np.int32)})
            contenders[BATCHED] = own.timed(step, [pid], steps)
            vector = RemoteVectorEnv(address, count)
            contenders[VECTOR] = own.timed(vector_step(stack, vector), [pid], steps)
            address, pid = own.started(_serve, functools.partial(CheapGym, payload))
            vector = RemoteVectorEnv(address, count)
            contenders[VECTOR_OF_GYMNASIUM] = own.timed(vector_step(stack, vector), [pid], steps)
            row = settings.row(f"{count} of {payload}", contenders, f"one core, {count} {payload}")
        rows.append(row)
        targets += [
            row.at_most(name, ASYNC, limit) for name in (BATCHED, VECTOR, VECTOR_OF_GYMNASIUM)
        ]
    title = "A step of all rows of a batch on one core, processor time of both ends"
    return Section("one-core-batched", title, rows, targets)
