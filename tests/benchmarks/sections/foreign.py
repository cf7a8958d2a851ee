"""Vector environments of other projects through the wire, against the same in this process.

The server is another process, so that on two processors an environment that steps in threads shares
them with what is between it and the caller.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium

from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.server import Server, serve
from tests.benchmarks.processes import serving
from tests.benchmarks.results import Section, Target
from tests.benchmarks.rounds import timed
from tests.benchmarks.sections.serving import vector_step
from tests.benchmarks.settings import Settings

OURS = "RemoteVectorEnv"
OWN = "in process"

_ROWS = 64
_QUICK_ROWS = 4
_STEPS = 10
_LEAST_RATE = 1e5


def _entry_point(name: str, num_envs: int) -> Any:
    return gymnasium.make_vec(name, num_envs, vectorization_mode="vector_entry_point")


def _atari(name: str, num_envs: int) -> Any:
    importlib.import_module("ale_py")  # It registers its environments.
    return _entry_point(name, num_envs)


def _envpool(name: str, num_envs: int) -> Any:
    import envpool

    return envpool.make(name, env_type="gymnasium", num_envs=num_envs, seed=0)


class _Kind(NamedTuple):
    """What is measured.

    Attributes:
      make: makes the vector environment.
      package: what has to be installed.
      most: how often the cost in process a step may cost through the wire; three times for what
        may also reach a rate instead.
      least_rate: that rate, in environment steps a second; None if the cost alone counts.
    """

    make: Callable[..., Any]
    package: str
    most: float
    least_rate: float | None = None


_KINDS = {
    "CartPole, vector_entry_point": _Kind(
        functools.partial(_entry_point, "CartPole-v1"), "gymnasium", 3.0, _LEAST_RATE
    ),
    "ALE's AtariVectorEnv, Pong": _Kind(functools.partial(_atari, "ALE/Pong-v5"), "ale_py", 1.1),
    "EnvPool, CartPole": _Kind(functools.partial(_envpool, "CartPole-v1"), "envpool", 2.0),
    "EnvPool, Pong": _Kind(functools.partial(_envpool, "Pong-v5"), "envpool", 1.1),
}


def _serve(make: Callable[..., Any], count: int) -> Server:
    # ALE keeps the interpreter while it makes an environment, for so long that a client may take
    # the server for lost.
    made = make(count)
    return serve(lambda: made)


def foreign(settings: Settings) -> Section:
    """Vector environments of other projects; those that are not installed are named as such."""
    rows, targets = [], []
    missing = []
    count = _QUICK_ROWS if settings.is_quick else _ROWS
    for name, kind in _KINDS.items():
        title = f"{count} {name}"
        if importlib.util.find_spec(kind.package) is None:
            missing.append(f"{name} (pip install {kind.package.replace('_', '-')})")
            continue
        with contextlib.ExitStack() as stack:
            address = stack.enter_context(serving(_serve, kind.make, count))
            both = {OURS: RemoteVectorEnv(address, count), OWN: kind.make(count)}
            contenders = {
                who: timed(vector_step(stack, envs), _STEPS, count) for who, envs in both.items()
            }
            row = settings.row(title, contenders)
        rows.append(row)
        ratio, rate = row.ratio(OURS, OWN), 1 / row.samples[OURS].median
        if kind.least_rate is not None and rate >= kind.least_rate:
            target = Target(f"{title}: steps/s", rate, kind.least_rate, is_rate=True)
        else:
            text = f"{title}: times the cost {OWN}"
            target = Target(text, ratio, kind.most, is_minimum=False)
        targets.append(target)
    without = f"; not installed: {', '.join(missing)}" if missing else ""
    # PufferLib 3 has no wheels, and its build downloads what is on no package index.
    return Section("foreign", f"A step of one row{without}", rows, targets)
