"""Lookalikes of simulators whose batches are tensors, written from their documented interfaces.

They need torch. `tests/simulators` has those that can be installed.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

ROWS, SIZE = 8, 3

ACTION = spaces.Box(-1, 1, (2,), np.float32)
OBSERVATION = spaces.Box(-np.inf, np.inf, (SIZE,), np.float32)


class _OfTorch(gymnasium.Env[Any, Any]):
    """Rows that walk, and begin anew within their steps."""

    render_mode = None

    def __init__(self, num_envs: int = ROWS, device: str = "cpu"):
        import torch

        self.torch = torch
        self.num_envs = num_envs
        self.device = torch.device(device)
        self.single_action_space = ACTION
        self.action_space = batch_space(ACTION, num_envs)
        self._state = torch.zeros(num_envs, SIZE)
        self._age = torch.zeros(num_envs, dtype=torch.int64)
        self._returns = torch.zeros(num_envs)
        self._random = torch.Generator()
        self.actions: list[Any] = []

    def _begin(self, which: Any) -> None:
        count = int(which.sum())
        self._state[which] = self.torch.randn(count, SIZE, generator=self._random)
        self._age[which] = 0
        self._returns[which] = 0

    def _take(self, actions: Any) -> tuple[Any, Any, Any]:
        assert isinstance(actions, self.torch.Tensor)
        assert actions.device == self.device
        self.actions.append(actions.clone())
        self._state[:, :2] += actions.to(self.device)
        self._age += 1
        reward = self._state.square().sum(1).neg()
        self._returns += reward
        return reward, self._state[:, 0].abs() > 3, self._age >= 7


class IsaacLab(_OfTorch):
    """As `ManagerBasedRLEnv`: one `extras` for ever, whose log is stale between resets."""

    metadata: dict[str, Any] = {"render_modes": [None, "human"]}  # noqa: RUF012

    def __init__(self, num_envs: int = ROWS, device: str = "cpu", final: bool = False):
        super().__init__(num_envs, device)
        self.single_observation_space = spaces.Dict({"policy": OBSERVATION})
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.extras: dict[str, Any] = {}
        self._final = final

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        assert seed is None or type(seed) is int
        if seed is not None:
            self._random.manual_seed(seed)
        self._begin(self.torch.ones(self.num_envs, dtype=self.torch.bool))
        self.extras["log"] = {}
        return {"policy": self._state.clone().requires_grad_()}, self.extras

    def step(self, action: Any) -> Any:
        reward, terminated, truncated = self._take(action)
        ended = terminated | truncated
        if ended.any():
            mean = self._returns[ended].mean()
            self.extras["log"] = {"Episode_Reward/sum": mean, "Curriculum/level": 1.5}
            if self._final:
                self.extras["final_obs"] = {"policy": self._state.clone()}
            self._begin(ended)
        self.extras["time_outs"] = truncated
        return {"policy": self._state.clone()}, reward, terminated, truncated, self.extras


class OfManiSkill:
    """A base class that makes others look like those of ManiSkill's package."""


OfManiSkill.__module__ = "mani_skill.envs.sapien_env"


class ManiSkill(_OfTorch, OfManiSkill):
    """As `ManiSkillVectorEnv`: `final_observation`, `final_info`, masks, rewards [N, 1].

    Without `auto_reset`, a reset with the indices `env_idx` begins the episodes of some rows.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, num_envs: int = ROWS, device: str = "cpu", auto_reset: bool = True):
        super().__init__(num_envs, device)
        self._auto_reset = auto_reset
        self.single_observation_space = OBSERVATION
        self.observation_space = batch_space(OBSERVATION, num_envs)

    def reset(self, *, seed: int | list[int] | None = None, options: Any = None) -> Any:
        if seed is not None:
            self._random.manual_seed(seed if isinstance(seed, int) else seed[0])
        which = self.torch.ones(self.num_envs, dtype=self.torch.bool)
        if options is not None and "env_idx" in options:
            assert isinstance(options["env_idx"], self.torch.Tensor)
            which[:] = False
            which[options["env_idx"]] = True
        self._begin(which)
        return self._state.clone(), {"reconfigure": False}

    def step(self, action: Any) -> Any:
        reward, terminated, truncated = self._take(action)
        ended = terminated | truncated
        infos: dict[str, Any] = {
            "elapsed_steps": self._age.clone(),
            "success": terminated,
            "half": self._state[:, 0].to(self.torch.bfloat16),
            "reconfigure": False,
        }
        if ended.any() and self._auto_reset:
            infos.update(
                final_observation=self._state.clone(),
                final_info={"episode": {"r": self._returns.clone()}},
                _final_observation=ended,
                _final_info=ended,
            )
            self._begin(ended)
        return (
            self._state.clone(),
            reward[:, None],
            terminated.to(self.torch.uint8),
            truncated,
            infos,
        )


class Genesis:
    """A class of its own: no spaces, four values, no seed, no `close`."""

    num_envs = ROWS

    def reset(self) -> Any:
        raise AssertionError

    def step(self, action: Any) -> Any:
        raise AssertionError
