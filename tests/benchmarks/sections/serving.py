"""A Python environment behind this package's server, against what its users would pick instead.

Each contender has the same cheap environment in other processes: Gymnasium's AsyncVectorEnv (with
shared memory), a bare multiprocessing Pipe, and a server and client on dm-env-rpc's modules.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
import timeit
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection as Pipe
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv

from dm_env_rpc_client import BatchedEnvironment, make
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server
from dm_env_rpc_client.server import serve
from tests.benchmarks.cheap import PAYLOADS, Cheap, compute
from tests.benchmarks.processes import process, serving
from tests.benchmarks.results import Row, Section, Target
from tests.benchmarks.rounds import Contender, timed
from tests.benchmarks.sections.reference_serving import serve_reference
from tests.benchmarks.settings import Settings
from tests.benchmarks.steppers import REFERENCE, Reference

OURS = "dm_env_rpc_client, both ends"
OURS_UNIX = "dm_env_rpc_client, a unix socket"
OURS_GRPC = "dm_env_rpc_client, grpcio's server"
ONE_FILE = "dm_env_rpc_client, the server in one file"
REFERENCE_PAIR = f"{REFERENCE}, both ends"
ASYNC = "AsyncVectorEnv"
PIPE = "multiprocessing Pipe"
IN_SERVER = "in the process of the server"
IN_WORKER = "in a worker, processes=1"
BATCHED = "BatchedEnvironment"
VECTOR = "RemoteVectorEnv"

_QUICK_PAYLOADS = ("float32 [1]",)
_STEPS = 100
_TOGETHER = 16
_QUICK_TOGETHER = 4
_STEPS_TOGETHER = 20

_MOST_OF_ASYNC = {"float32 [1]": 1.0, "uint8 84x84x4": 1.0, "float32 84x84x4": 1.3}
_LEAST_OF_REFERENCE = {"float32 [1]": 5.0, "uint8 84x84x4": 5.0, "float32 84x84x4": 12.0}
_MOST_OF_PIPE = 1.6
_MOST_OF_SERVE = 1.5
_COMPUTING = 16
_PAIR = 2
_STEPS_COMPUTING = 10
_COMPUTED_SECONDS = 0.001
_CALIBRATIONS = 20
_MOST_OF_ASYNC_PAIR = 1.15
_STEPS_PAIR = 40
_LEAST_OF_ASYNC_RATE = 0.9
_LEAST_OF_ONE_PROCESS = 1.8

_MOST_TOGETHER = {"float32 [1]": 0.4, "uint8 84x84x4": 0.4, "float32 84x84x4": 0.8}


def _work_of(seconds: float) -> int:
    """Returns the work that takes so long on a machine that does nothing else."""
    work = 100_000
    shortest = min(timeit.repeat(lambda: compute(work), number=1, repeat=_CALIBRATIONS))
    return round(work * seconds / shortest)


class CheapGym(gymnasium.Env[Any, Any]):
    """The same for Gymnasium."""

    def __init__(self, payload: str, work: int = 0):
        shape, dtype = PAYLOADS[payload]
        self._observation = np.zeros(shape, dtype)
        self._work = work
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, dtype)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        compute(self._work)
        return self._observation, 1.0, False, False, {}


def _cheap(payload: str, bytes: int = 0) -> Cheap:
    """For settings as the C++ client sends them, too."""
    return Cheap({"scalar": "float32 [1]"}.get(payload, payload))


def _be_behind_a_pipe(told: Pipe, payload: str) -> None:
    environment = CheapGym(payload)
    told.send("ready")
    while (action := told.recv()) is not None:
        told.send(environment.step(action))


def _through_a_pipe(stack: contextlib.ExitStack, payload: str) -> Callable[[], object]:
    pipe = stack.enter_context(process(_be_behind_a_pipe, payload))
    pipe.recv()

    def step() -> None:
        pipe.send(1)
        pipe.recv()

    return step


def vector_step(
    stack: contextlib.ExitStack, envs: Any, seed: int | None = None
) -> Callable[[], object]:
    """Returns what steps a vector environment, which the stack closes, with the actions 0 and 1."""
    stack.callback(envs.close)
    if seed is None:
        envs.reset()  # EnvPool takes no seed.
    else:
        envs.reset(seed=seed)
    actions = np.resize(np.array([0, 1]), envs.num_envs)
    return lambda: envs.step(actions)


def _async_vector(
    stack: contextlib.ExitStack, payload: str, count: int, work: int = 0
) -> Callable[[], object]:
    # Forks of a process that uses grpcio, as the reference does, may crash.
    makers = [functools.partial(CheapGym, payload, work)] * count
    return vector_step(stack, AsyncVectorEnv(makers, shared_memory=True, context="spawn"))


def _together(
    stack: contextlib.ExitStack, address: str, count: int, **created: Any
) -> dict[str, Callable[[], object]]:
    """Steps of a BatchedEnvironment and of a RemoteVectorEnv, by their names."""
    batched = stack.enter_context(BatchedEnvironment(address, count, created))
    vector = stack.enter_context(RemoteVectorEnv(address, count, created))
    batched.reset()
    vector.reset()
    actions = np.ones(count, np.int32)
    return {
        BATCHED: functools.partial(batched.step, {"action": actions}),
        VECTOR: functools.partial(vector.step, actions),
    }


def _ours(address: str = "localhost:0", transport: str = "http2") -> AbstractContextManager[str]:
    return serving(serve, _cheap, address, transport=transport, max_connections=64)


def _payloads(settings: Settings) -> Iterable[str]:
    return _QUICK_PAYLOADS if settings.is_quick else PAYLOADS


def served(settings: Settings) -> Section:
    """A step of one environment in another process."""
    rows = []
    with contextlib.ExitStack() as servers:
        folder = servers.enter_context(tempfile.TemporaryDirectory())
        addresses = {
            name: servers.enter_context(server)
            for name, server in {
                OURS: _ours(),
                OURS_UNIX: _ours(f"unix:{folder}/server"),
                OURS_GRPC: _ours(transport="grpc"),
                ONE_FILE: serving(dm_env_rpc_server.serve, _cheap, "localhost:0"),
            }.items()
        }
        for payload in _payloads(settings):
            with contextlib.ExitStack() as stack:
                contenders: dict[str, Contender] = {}
                for name, address in addresses.items():
                    env = stack.enter_context(make(address, {"payload": payload}))
                    env.reset()
                    step = functools.partial(env.step, {"action": 1})
                    contenders[name] = timed(step, _STEPS)
                address = stack.enter_context(serving(serve_reference, Cheap(payload)))
                reference = Reference(address, {})
                stack.callback(reference.close)
                contenders[REFERENCE_PAIR] = timed(reference.step, _STEPS // 4)
                contenders[ASYNC] = timed(_async_vector(stack, payload, 1), _STEPS)
                contenders[PIPE] = timed(_through_a_pipe(stack, payload), _STEPS)
                rows.append(settings.row(payload, contenders, f"served, {payload}"))
    targets = []
    for row in rows:
        targets += [
            row.at_most(OURS, ASYNC, _MOST_OF_ASYNC[row.name]),
            row.at_least(OURS, REFERENCE_PAIR, _LEAST_OF_REFERENCE[row.name]),
            row.at_most(ONE_FILE, OURS, _MOST_OF_SERVE),
            row.at_most(ONE_FILE, REFERENCE_PAIR, 1.0),
        ]
    targets.append(rows[0].at_most(OURS, PIPE, _MOST_OF_PIPE))
    return Section("served", "A step of a Python environment in another process", rows, targets)


def served_together(settings: Settings) -> Section:
    """A step of one of many environments in other processes; one server process has all of ours."""
    rows = []
    count = _QUICK_TOGETHER if settings.is_quick else _TOGETHER
    with _ours() as address:
        for payload in _payloads(settings):
            with contextlib.ExitStack() as stack:
                steps = _together(stack, address, count, payload=payload)
                steps[ASYNC] = _async_vector(stack, payload, count)
                contenders = {
                    name: timed(step, _STEPS_TOGETHER, count) for name, step in steps.items()
                }
                rows.append(settings.row(payload, contenders, f"served together, {payload}"))
    targets = [
        row.at_most(name, ASYNC, _MOST_TOGETHER[row.name])
        for row in rows
        for name in (BATCHED, VECTOR)
    ]
    title = f"A step of one of {count} Python environments in other processes"
    return Section("served-together", title, rows, targets)


def served_computing(settings: Settings) -> Section:
    """A step of one of 16 environments that compute in Python, in other processes."""
    (payload, *_) = PAYLOADS
    work = _work_of(_COMPUTED_SECONDS)
    steps: dict[str, Callable[[], object]] = {}
    with contextlib.ExitStack() as stack:
        for processes in (1, 2):
            server = stack.enter_context(serve(Cheap, processes=processes))
            pair = _together(stack, server.address, _COMPUTING, payload=payload, work=work)
            steps |= {_of(name, processes): step for name, step in pair.items()}
        steps[ASYNC] = _async_vector(stack, payload, _COMPUTING, work)
        contenders = {
            name: timed(step, _STEPS_COMPUTING, _COMPUTING) for name, step in steps.items()
        }
        row = settings.row("1 ms in Python", contenders, "served, computing")
    two = _pair(settings, payload, work)
    targets = [two.at_most(name, ASYNC, _MOST_OF_ASYNC_PAIR) for name in (BATCHED, VECTOR)]
    for name in (BATCHED, VECTOR):
        ours = _of(name, 2)
        text = f"{ours}: times the rate of {ASYNC}"
        targets.append(Target(text, row.ratio(ASYNC, ours), _LEAST_OF_ASYNC_RATE))
        text = f"{ours}: times the rate of one process"
        targets.append(Target(text, row.ratio(_of(name, 1), ours), _LEAST_OF_ONE_PROCESS))
    title = f"A step of one of {_COMPUTING} Python environments that compute for 1 ms"
    return Section("served-computing", title, [row, two, _hop(settings, payload)], targets)


def _pair(settings: Settings, payload: str, work: int) -> Row:
    """A step of one of two environments that compute for 1 ms, each in a process of its own."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serve(Cheap, processes=_PAIR))
        steps = _together(stack, server.address, _PAIR, payload=payload, work=work)
        steps[ASYNC] = _async_vector(stack, payload, _PAIR, work)
        contenders = {name: timed(step, _STEPS_PAIR, _PAIR) for name, step in steps.items()}
        return settings.row("1 ms, two in two processes", contenders, "served, a pair")


def _hop(settings: Settings, payload: str) -> Row:
    """A step of a cheap environment with a stream of its own, at the server and in a worker."""
    contenders = {}
    with contextlib.ExitStack() as stack:
        for name, processes in {IN_SERVER: None, IN_WORKER: 1}.items():
            server = stack.enter_context(serve(Cheap, processes=processes))
            env = stack.enter_context(make(server.address, {"payload": payload}))
            env.reset()
            step = functools.partial(env.step, {"action": 1})
            contenders[name] = timed(step, _STEPS)
        return settings.row("cheap, alone", contenders, "served, a hop")


def _of(name: str, processes: int) -> str:
    return f"{name}, {processes} process{'es' if processes > 1 else ''}"
