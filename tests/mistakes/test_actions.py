"""Actions that a spec does not allow: refused by their path, before anything is sent, by every way.

Nothing is out of step afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dm_env_rpc_client import BatchedEnvironment, SpecError, make, make_async
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.distributed import LocalRollouts
from dm_env_rpc_client.server import Server
from tests.support.environments import Robot
from tests.support.serving import serving

TRANSPORTS = ["http2"]

robot = serving(Robot)


def action(**changes: Any) -> dict[str, Any]:
    return {"arm": {"torque": [1.0, 0.0, 0.0], "grip": True}, "mode": 2, "speech": "hi", **changes}


WRONG: dict[str, tuple[Any, str]] = {
    "an unknown name": (
        action(arm={"torqe": [0, 0, 0]}), r"unknown action 'arm.torqe'; did you mean",
    ),
    "a shape": (action(arm={"torque": [0, 0]}), r"action 'arm.torque'.*: has shape \[2\]"),
    "a fraction": (action(mode=1.5), r"action 'mode'.*is 1.5"),
    "a text": (action(mode="fast"), r"action 'mode'.*: expected int32"),
    "a value": (action(mode=4), r"is 4, outside its bounds \[0, 3\]"),
    "NaN": (action(arm={"torque": [0, np.nan, 0]}), r"element \[1\] is nan"),
    "an element": (action(arm={"torque": [0, 2, 0]}), r"element \[1\] is 2.0, outside"),
    "a number": (action(speech=3), r"action 'speech'"),
    "None": (action(speech=None), r"action 'speech'.*NoneType"),
    "no mapping": (3, r"a mapping of names to values, got int"),
}  # fmt: skip

ALONE: dict[str, Callable[[Any, Any], object]] = {
    "step": lambda env, bad: env.step(bad),
    "submit_step": lambda env, bad: env.submit_step(bad),
    "unroll": lambda env, bad: env.unroll([action(), bad]),
    "rollout": lambda env, bad: list(env.rollout([action(), bad], ahead=1)),
    "rollout, ahead": lambda env, bad: list(env.rollout([action(), action(), bad], ahead=64)),
}


@pytest.mark.parametrize(("bad", "text"), WRONG.values(), ids=WRONG)
def test_of_one_environment(robot: Server, bad: Any, text: str) -> None:
    with make(robot.address) as env:
        for way in ALONE.values():
            env.reset()
            with pytest.raises(SpecError, match=text):
                way(env, bad)
            assert env.step(action()).reward == 1.0

    async def main() -> None:
        async with await make_async(robot.address) as env:
            await env.reset()
            with pytest.raises(SpecError, match=text):
                await env.step(bad)
            with pytest.raises(SpecError, match=text):
                async for _ in env.rollout([action(), bad], ahead=2):
                    pass
            assert (await env.step(action())).reward == 1.0

    asyncio.run(main())
    assert robot.errors == []


def test_of_a_rollout_when_its_turn_comes(robot: Server) -> None:
    with make(robot.address) as env:
        for ahead in (1, 2, 64):
            env.reset()
            rollout = env.rollout([action(), action(), 3], ahead=ahead)
            assert [next(rollout).mid() for _ in range(2)] == [True, True]
            with pytest.raises(SpecError, match="got int"):
                next(rollout)


NUMBERS: list[tuple[Any, str, bool]] = [
    ([1, 1, 1, 7], r"environment 3 at localhost:\d+: action 'paddle'.*7, outside", True),
    ([1, 1, 1], "(action 'paddle': )?expected 4 rows", True),
    (1, "expected 4 (values|rows)", False),
    ([1, 2, 1, 0.5], r"action 'paddle': element \[3\] is 0.5", True),
    (np.ones((4, 1), int), r"environment 0 at .*'paddle'.*shape \[1\]", True),
]


@pytest.mark.parametrize(("bad", "text", "is_of_vectors"), NUMBERS)
@pytest.mark.parametrize("num_batches", [0, 1], ids=["streams", "batch"])
def test_of_rows(
    catch_server: Server, bad: Any, text: str, is_of_vectors: bool, num_batches: int
) -> None:
    good = np.ones(4, int)
    rows: dict[str, Any] = {"num_batches": num_batches}
    with BatchedEnvironment(catch_server.address, 4, {"rows": 3}, **rows) as env:
        env.reset()
        for use in (env.step, env.send):
            with pytest.raises(SpecError, match=text):
                use({"paddle": bad})
        with pytest.raises(SpecError, match="unknown action 'speed'"):
            env.step({"speed": good})
        with pytest.raises(SpecError, match="mapping of names to arrays, got list"):
            env.step([1, 1, 1, 1])
        assert env.step({"paddle": good}).mid().all()
        assert env.step({"paddle": good}).last().all()
    with RemoteVectorEnv(catch_server.address, 4, {"rows": 3}, **rows) as envs:
        envs.reset()
        if is_of_vectors:
            with pytest.raises(SpecError, match=text):
                envs.step(bad)
        assert not envs.step(good)[2].any()
        assert envs.step(good)[2].all()
        # No action of a step that begins an episode goes anywhere.
        assert not envs.step(good * 7)[2].any()


def test_of_rollouts(catch_server: Server) -> None:
    def choose(timestep: Any, weights: Any, random: Any) -> Any:
        return {"paddle": np.array([1, 1, weights])}

    with LocalRollouts(lambda _: make(catch_server.address), choose, 1, 3, weights=7) as rollouts:
        with pytest.raises(SpecError, match="environment 2: action 'paddle'"):
            rollouts.collect(2)
        rollouts.update(2)
        assert rollouts.collect(2).timesteps.step_type[0].tolist() == [0, 0, 0]
