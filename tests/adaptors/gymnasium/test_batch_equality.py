"""Gymnasium environments in batches, on streams of their own and in SyncVectorEnv: the same."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.server import Server
from tests.support.serving import serving

_ROWS = 5
_STEPS = 150
_SEED = 11


class Thermostats(gymnasium.Env[Any, Any]):
    """Dicts as observations, infos of all kinds, and episodes of random lengths."""

    def __init__(self) -> None:
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = gymnasium.spaces.Dict(
            {
                "rooms": gymnasium.spaces.Box(-50, 50, (2, 3), np.float64),
                "mode": gymnasium.spaces.Discrete(4, start=1),
                "on": gymnasium.spaces.MultiBinary(3),
            }
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(1, 9))
        return self._observed(), {"left": self._left}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        info: dict[str, Any] = {"power": float(action.sum()), "pair": action * 2}
        if self._left % 3 == 0:
            info |= {"alarm": "hot", "nested": {"left": self._left, "far": self._left > 4}}
        is_over, wins = self._left == 0, bool(self.np_random.integers(2))
        return self._observed(), info["power"], is_over and wins, is_over and not wins, info

    def _observed(self) -> dict[str, Any]:
        return {
            "rooms": self.np_random.uniform(-40, 40, (2, 3)),
            "mode": int(self.np_random.integers(1, 5)),
            "on": self.np_random.integers(0, 2, 3, np.int8),
        }


_WORLDS: dict[str, Callable[[], gymnasium.Env[Any, Any]]] = {
    "CartPole": functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=30),
    "FrozenLake": functools.partial(gymnasium.make, "FrozenLake-v1"),
    "Blackjack": functools.partial(gymnasium.make, "Blackjack-v1"),
    "Thermostats": Thermostats,
}


def _world(name: str) -> gymnasium.Env[Any, Any]:
    return _WORLDS[name]()


server = serving(_world)


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
@pytest.mark.parametrize("name", _WORLDS)
def test_steps_and_ends(server: Server, name: str, mode: AutoresetMode) -> None:
    local = SyncVectorEnv([functools.partial(_world, name)] * _ROWS, autoreset_mode=mode)
    settings = {"name": name}
    with (
        RemoteVectorEnv(server.address, _ROWS, settings, autoreset_mode=mode) as batch,
        RemoteVectorEnv(
            server.address, _ROWS, settings, autoreset_mode=mode, num_batches=0
        ) as streams,
    ):
        everywhere: list[Any] = [local, batch, streams]
        assert server.world_count == 1 + _ROWS
        assert batch.single_observation_space == local.single_observation_space
        assert batch.action_space == local.action_space
        _same([env.reset(seed=_SEED) for env in everywhere])
        local.action_space.seed(_SEED)
        ends = 0
        for _ in range(_STEPS):
            actions = local.action_space.sample()
            results = [env.step(actions) for env in everywhere]
            _same(results)
            is_over = results[0][2] | results[0][3]
            ends += int(is_over.sum())
            if mode is AutoresetMode.DISABLED and is_over.any():
                _same([env.reset(options={"reset_mask": is_over.copy()}) for env in everywhere])
    local.close()
    assert ends > _STEPS // 10


def _same(results: list[Any]) -> None:
    expected, *others = results
    for found in others:
        for mine, other in zip(found, expected, strict=True):
            assert data_equivalence(mine, other), (mine, other)
