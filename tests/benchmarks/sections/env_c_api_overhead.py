"""What a step of EnvCApiEnvironment costs beyond the C functions that it calls.

    python -m tests.benchmarks.sections.env_c_api_overhead

The library has one observation of 72x96x3 bytes, one discrete action, and no more. The
contenders take turns in one run; medians.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from dm_env_rpc_client.bridges.env_c_api import EnvCApiEnvironment
from dm_env_rpc_client.bridges.env_c_api.declarations import layout
from tests.benchmarks.rounds import alternate, timed
from tests.bridges.env_c_api.compiling import compile_library

ROUNDS = 60
STEPS = 200
SHAPE = (72, 96, 3)


def direct(path: str, copy: bool) -> Callable[[], None]:
    """Calls the C functions as a program of one's own would, with nothing checked."""
    ffi = layout("1.4").ffi
    address = ctypes.cast(ctypes.CDLL(path).lean_connect, ctypes.c_void_p).value
    api, context = ffi.new("EnvCApi*"), ffi.new("void**")
    ffi.cast("int (*)(EnvCApi*, void**)", address)(api, context)
    handle = context[0]
    api.init(handle)
    api.start(handle, 0, 0)
    act, advance, event_count = api.act_discrete, api.advance, api.event_count
    observe = api.observation
    reward, observation = ffi.new("double*"), ffi.new("EnvCApi_Observation*")
    size = int(np.prod(SHAPE))

    def step() -> None:
        act(handle, [1])
        advance(handle, 1, reward)
        event_count(handle)
        observe(handle, 0, observation)
        if copy:
            np.frombuffer(ffi.buffer(observation.payload.bytes, size), np.uint8).copy()

    return step


def bridged(path: str, **kwargs: Any) -> Callable[[], object]:
    """Steps the environment."""
    environment = EnvCApiEnvironment(path, "lean_connect", **kwargs)
    environment.reset()
    return functools.partial(environment.step, {"move": 1})


def measure(rounds: int = ROUNDS) -> dict[str, float]:
    """Returns the microseconds of one step by contender."""
    path = compile_library("lean", "1.4", "-O2")
    steps = {
        "the C functions": direct(path, copy=False),
        "the C functions and one copy": direct(path, copy=True),
        "EnvCApiEnvironment": bridged(path),
        "EnvCApiEnvironment in a child process": bridged(path, isolated=True),
    }
    contenders = {name: timed(step, STEPS) for name, step in steps.items()}
    return {name: found.median * 1e6 for name, found in alternate(contenders, rounds).items()}


def main() -> None:
    """Prints a table."""
    medians = measure()
    base = medians["the C functions and one copy"]
    for name, median in medians.items():
        print(f"{name:40} {median:8.2f} us {median - base:+8.2f} us")


if __name__ == "__main__":
    main()
