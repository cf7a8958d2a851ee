"""Rows that end at different times, in every autoreset mode, are those of SyncVectorEnv."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dm_env_rpc_client.adaptors.gymnasium import make_remote
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.server import Server
from tests.adaptors.gymnasium.known import cart_pole
from tests.adaptors.gymnasium.proxied import Mirror
from tests.adaptors.sameness import same
from tests.support.environments import Dice
from tests.support.serving import serving
from tests.travelling.environments.usual import Usual
from tests.travelling.told import kept

NUM_ENVS = 5
STEPS = 60


class Uneven(Usual):
    """Ends after 2, 3, 4 ... steps: terminated, truncated, or both."""

    observation_space = gymnasium.spaces.Box(-9999, 9999, (2,), np.float64)

    def ends(self) -> tuple[bool, bool]:
        is_last = self.steps == 2 + self.row
        return is_last and self.row % 3 != 1, is_last and self.row % 3 != 0

    def inform(self) -> Any:
        some = {"nested": {"even": True, "text": "x"}} if self.steps % 2 == 0 else {}
        return {"count": self.count, "options": self.was_given["options"] is None, **some}


def mirror(kind: str, row: int) -> Mirror:
    return Mirror(kind, length=2 + row, ends=("terminated", "truncated", "both")[row % 3])


server = serving(
    {"Dice": Dice, "CartPole": cart_pole, "Uneven": Uneven, "Mirror": mirror}, checks_errors=True
)

LOCAL: dict[str, Callable[[Server, dict[str, Any]], gymnasium.Env[Any, Any]]] = {
    "Dice": lambda server, given: make_remote(server.address, {"environment": "Dice", **given}),
    "CartPole": lambda server, given: cart_pole(**given),
    "Uneven": lambda server, given: Uneven(**given),
    "Mirror": lambda server, given: mirror(**given),
}


def settings_of(name: str, row: int, kind: str) -> dict[str, Any]:
    if name == "Mirror":
        return {"kind": kind, "row": row}
    return {"Dice": {"seed": row}, "Uneven": {"row": row}}.get(name, {})


KINDS = ["box", "discrete", "text", "tuple", "dict with difficult keys", "one of", "graph"]

CASES = [
    *((name, mode, "") for name in ("Dice", "CartPole", "Uneven") for mode in AutoresetMode),
    *(("Mirror", AutoresetMode.SAME_STEP, kind) for kind in KINDS),
]


@pytest.mark.parametrize("num_batches", [1, 0, 2])
@pytest.mark.parametrize(("name", "mode", "kind"), CASES)
def test_every_step_is_that_of_gymnasiums_own(
    server: Server, name: str, mode: AutoresetMode, kind: str, num_batches: int
) -> None:
    settings = [settings_of(name, row, kind) for row in range(NUM_ENVS)]
    expected = SyncVectorEnv(
        [functools.partial(LOCAL[name], server, each) for each in settings], autoreset_mode=mode
    )
    named = [{"environment": name, **each} for each in settings]
    options: dict[str, Any] = {"autoreset_mode": mode, "num_batches": num_batches}
    found = RemoteVectorEnv(server.address, NUM_ENVS, named, **options)
    with contextlib.closing(found), contextlib.closing(expected):
        assert found.metadata["autoreset_mode"] is found.autoreset_mode is mode
        assert found.single_observation_space == expected.single_observation_space
        assert found.single_action_space == expected.single_action_space
        assert found.observation_space == expected.observation_space
        assert found.action_space == expected.action_space
        assert same(kept(found.reset(seed=7)), expected.reset(seed=7))
        expected.action_space.seed(0)
        ends = 0
        for step in range(STEPS if name != "Mirror" else 12):
            actions = expected.action_space.sample()
            mine, theirs = found.step(actions), expected.step(actions)
            assert mine[0] in found.observation_space
            # What a caller does with its arrays changes no row, then or later.
            assert same(kept(mine), theirs)
            ended = theirs[2] | theirs[3]
            ends += int(ended.sum())
            if mode is AutoresetMode.DISABLED and ended.any():
                seeds = [None if step % 2 else step + index for index in range(NUM_ENVS)]
                again = kept(found.reset(seed=seeds, options={"reset_mask": ended}))
                assert same(again, expected.reset(seed=seeds, options={"reset_mask": ended.copy()}))
        assert ends > NUM_ENVS
        assert same(found.reset(), expected.reset())


@pytest.mark.parametrize("num_batches", [1, 0, 2])
def test_arrays_that_stay_are_the_same_ones(server: Server, num_batches: int) -> None:
    settings = [{"environment": "Uneven", "row": row} for row in (3, 4)]
    with RemoteVectorEnv(server.address, 2, settings, copy=False, num_batches=num_batches) as envs:
        first, _ = envs.reset()
        assert envs.step(np.zeros(2, np.int64))[0] is first
        assert envs.reset(options={"reset_mask": np.array([True, False])})[0] is first
        assert first.tolist() == [[130.0, -130.0], [41.0, -41.0]]
