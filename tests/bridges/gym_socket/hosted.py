"""Environments for the server's tests, at module level for processes, and servers of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import specs

from dm_env_rpc_client.adaptors.gymnasium import GymnasiumEnvironment
from dm_env_rpc_client.bridges.gym_socket import GymSocketEnvironment, Server, serve
from dm_env_rpc_client.bridges.gym_socket.packets import Dialect


def seeded_cart_pole() -> GymnasiumEnvironment:
    return GymnasiumEnvironment(gymnasium.make("CartPole-v1"), seed=7)


class Counter(dm_env.Environment):
    """Counts its steps; an episode has `length`. Action 2 fails, action 3 kills the process."""

    def __init__(self, length: int = 3, discount: float = 0.0):
        self._length = length
        self._discount = discount
        self._count = 0
        self.info: Any = {"pid": os.getpid()}
        self.closed = False

    def action_spec(self) -> specs.Array:
        return specs.DiscreteArray(5, name="action")

    def observation_spec(self) -> specs.Array:
        return specs.BoundedArray((1,), np.int32, 0, 9, "count")

    def reset(self) -> dm_env.TimeStep:
        self._count = 0
        return dm_env.restart(np.zeros(1, np.int32))

    def step(self, action: Any) -> dm_env.TimeStep:
        if action == 2:
            raise RuntimeError("the environment is broken")
        if action == 3:
            os._exit(3)
        if action == 4:
            time.sleep(60)  # It hangs.
        self._count += 1
        observation = np.array([self._count], np.int32)
        if self._count == self._length:
            return dm_env.TimeStep(dm_env.StepType.LAST, 1.0, self._discount, observation)
        return dm_env.transition(1.0, observation)

    def close(self) -> None:
        self.closed = True


class Frames(dm_env.Environment):
    """A uint8 frame under one name, and actions under two."""

    def action_spec(self) -> dict[str, specs.Array]:
        return {
            "torque": specs.BoundedArray((2,), np.float32, -1, 1, "torque"),
            "grip": specs.Array((), bool, "grip"),
        }

    def observation_spec(self) -> dict[str, specs.Array]:
        return {"frame": specs.BoundedArray((2, 3), np.uint8, 0, 255, "frame")}

    def reset(self) -> dm_env.TimeStep:
        return dm_env.restart({"frame": np.arange(6, dtype=np.uint8).reshape(2, 3)})

    def step(self, action: Any) -> dm_env.TimeStep:
        frame = np.full((2, 3), 255 if action["grip"] else 0, np.uint8)
        return dm_env.transition(float(action["torque"].sum()), {"frame": frame})


class LargeFrames(Frames):
    """A few of them are more than the buffers of two sockets hold."""

    def observation_spec(self) -> dict[str, specs.Array]:
        return {"frame": specs.BoundedArray((500, 500), np.uint8, 0, 255, "frame")}

    def reset(self) -> dm_env.TimeStep:
        return dm_env.restart({"frame": np.zeros((500, 500), np.uint8)})


class TwoRewards(Counter):
    def reward_spec(self) -> specs.Array:
        return specs.Array((2,), np.float32)


class Restarting(Counter):
    def step(self, action: Any) -> dm_env.TimeStep:
        return self.reset()


class WrongShape(Counter):
    def reset(self) -> dm_env.TimeStep:
        return dm_env.restart(np.zeros(2, np.int32))


class WrongKeys(Frames):
    def reset(self) -> dm_env.TimeStep:
        return dm_env.restart({"image": np.zeros((2, 3), np.uint8)})


class Rendered(Counter):
    """Counts its renderings in its info, and samples one action only."""

    def sample_action(self) -> int:
        return 4

    def render(self) -> None:
        self.info["renderings"] = self.info.get("renderings", 0) + 1


def broken() -> dm_env.Environment:
    raise RuntimeError("no display")


def no_environment() -> int:
    return 5


def counting(factory: Any = Counter, **kwargs: Any) -> Server:
    return serve({"Counter": factory}, "localhost:0", **kwargs)


@contextmanager
def hosting(
    factory: Any = Counter, dialect: Dialect = "first", **kwargs: Any
) -> Iterator[tuple[Server, GymSocketEnvironment]]:
    """Yields a server of an environment, and a client of it."""
    with (
        counting(factory, dialect=dialect, **kwargs) as server,
        GymSocketEnvironment(server.address, "Counter", dialect=dialect) as environment,
    ):
        yield server, environment
