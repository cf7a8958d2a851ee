"""Episodes of RemoteVectorEnv, in every autoreset mode, are those of Gymnasium's SyncVectorEnv."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dm_env_rpc_client.adaptors.gymnasium import make_remote
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.server import Server, serve

NUM_ENVS = 5


class Walk(dm_env.Environment):
    """Episodes of random lengths that are terminated or truncated, with what text tells."""

    def __init__(self, seed: int = 0):
        self._random = np.random.default_rng(seed)

    def action_spec(self) -> dict[str, Any]:
        return {
            "legs": {"left": specs.DiscreteArray(3), "right": specs.Array((2,), np.float32)},
            "say": specs.StringArray(()),
        }

    def observation_spec(self) -> dict[str, Any]:
        return {
            "camera": specs.BoundedArray((2, 3, 3), np.uint8, 0, 255),
            "position": {"x": specs.Array((), np.float64), "step": specs.Array((), np.int32)},
            "said": specs.StringArray((2,)),
            "flags": specs.Array((3,), bool),
        }

    def reset(self) -> dm_env.TimeStep:
        self._left = int(self._random.integers(1, 5))
        self._x = 0.0
        return dm_env.restart(self._observe("first"))

    def step(self, action: Any) -> dm_env.TimeStep:
        self._left -= 1
        self._x += float(np.sum(action["legs"]["right"])) + int(action["legs"]["left"])
        observation = self._observe(str(action["say"]))
        if self._left == 0:
            end = dm_env.termination if self._random.random() < 0.5 else dm_env.truncation
            return end(self._x, observation)
        return dm_env.transition(self._x, observation)

    def _observe(self, said: str) -> dict[str, Any]:
        return {
            "camera": self._random.integers(256, size=(2, 3, 3), dtype=np.uint8),
            "position": {"x": np.float64(self._x), "step": np.int32(self._left)},
            "said": np.array([said, said.upper()], object),
            "flags": self._random.random(3) < 0.5,
        }


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve(Walk) as server:
        yield server
        assert server.errors == []


def pair(
    server: Server, mode: AutoresetMode, **kwargs: Any
) -> tuple[RemoteVectorEnv, SyncVectorEnv]:
    """The same environments twice."""

    singles = [
        functools.partial(make_remote, server.address, {"seed": index}) for index in range(NUM_ENVS)
    ]
    expected = SyncVectorEnv(singles, autoreset_mode=mode)
    found = RemoteVectorEnv(
        server.address, NUM_ENVS, lambda index: {"seed": index}, autoreset_mode=mode, **kwargs
    )
    return found, expected


def assert_same(found: Any, expected: Any) -> None:
    """Compares structures of arrays, with their types and dtypes."""
    assert type(found) is type(expected), (found, expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, part in expected.items():
            assert_same(found[key], part)
    elif isinstance(expected, tuple | list) or (
        isinstance(expected, np.ndarray) and expected.dtype == object
    ):
        assert len(found) == len(expected)
        for mine, theirs in zip(found, expected, strict=True):
            assert_same(mine, theirs)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    else:
        assert found == expected


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("copy", [True, False])
def test_every_step_is_that_of_gymnasiums_own(
    server: Server, mode: AutoresetMode, copy: bool
) -> None:
    found, expected = pair(server, mode, copy=copy)
    with contextlib.closing(found), contextlib.closing(expected):
        assert found.metadata["autoreset_mode"] is mode
        assert found.single_observation_space == expected.single_observation_space
        assert found.single_action_space == expected.single_action_space
        assert found.observation_space == expected.observation_space
        assert found.action_space == expected.action_space
        assert_same(found.reset(seed=7), expected.reset(seed=7))
        expected.action_space.seed(0)
        ends = 0
        for step in range(60):
            actions = expected.action_space.sample()
            mine, theirs = found.step(actions), expected.step(actions)
            assert_same(mine, theirs)
            assert mine[0] in found.observation_space
            ended = theirs[2] | theirs[3]
            ends += int(ended.sum())
            if mode is AutoresetMode.DISABLED and ended.any():
                seeds = [None if step % 2 else step + index for index in range(NUM_ENVS)]
                assert_same(
                    found.reset(seed=seeds, options={"reset_mask": ended}),
                    expected.reset(seed=seeds, options={"reset_mask": ended.copy()}),
                )
        assert ends > 3 * NUM_ENVS
        assert_same(found.reset(), expected.reset())
    assert server.world_count == 0
