"""Environments of few numbers, which are the same with each NumPy, Gymnasium and processor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import dm_env
import gymnasium
import numpy as np
import tree
from dm_env import specs
from gymnasium import spaces

from dm_env_rpc_client.server import Game, Properties


class Counter(dm_env.Environment):
    """Counts; observes arrays of several dtypes, a text, and levels of names.

    Args:
      start: is added to what it counts.
      length: of a sequence.
      ends: how it ends, as "terminated", or "truncated".
      fails_in: the method that raises.
      fails_at: the step that raises, from 1; 0 for none.
      discount: of the steps in the middle.

    Attributes:
      made: is set when one is made, of this class; None for none.
    """

    made: threading.Event | None = None

    def __init__(
        self,
        start: int = 0,
        length: int = 3,
        ends: str = "terminated",
        fails_in: str = "",
        fails_at: int = 0,
        discount: float = 1.0,
    ):
        if length < 1:
            raise ValueError(f"length is {length}; it is at least 1")
        self._start, self._length, self._ends = int(start), int(length), ends
        if self.made is not None:
            self.made.set()
        self._fails_in, self._fails_at, self._discount = fails_in, fails_at, discount
        if discount != 1.0:
            self.discount_spec = lambda: specs.Array((), float, "discount")
        self._count = self._steps = 0
        self._fail("__init__")
        self.properties = Properties()
        self.properties.add("level.count", lambda: self._count, description="of steps")
        self.properties.add("level.start", lambda: self._start, self._set_start)
        self.properties.add("secret", None, self._set_start, spec=specs.Array((), np.int64))

    def _set_start(self, start: int) -> None:
        if start < 0:
            raise ValueError(f"start is {start}; it is not negative")
        self._start = start

    def _fail(self, method: str) -> None:
        if method == self._fails_in:
            raise RuntimeError(f"the physics exploded in {method}")

    def reset(self) -> dm_env.TimeStep:
        self._fail("reset")
        self._count = 0
        return dm_env.restart(self._observation(0, ""))

    def step(self, action: Any) -> dm_env.TimeStep:
        self._fail("step")
        if self._count == self._length:
            return self.reset()
        self._count += 1
        self._steps += 1
        if self._steps == self._fails_at:
            raise RuntimeError(f"the physics exploded in step {self._steps}")
        observation = self._observation(int(action["add"]), str(action["talk"]["say"]))
        reward = float(np.sum(action["wish"])) + self._count
        if self._count < self._length:
            return dm_env.transition(reward, observation, self._discount)
        end = dm_env.termination if self._ends == "terminated" else dm_env.truncation
        return end(reward, observation)

    def close(self) -> None:
        self._fail("close")

    def _observation(self, added: int, said: str) -> dict[str, Any]:
        count = self._start + self._count
        return {
            "zone": {"count": np.int32(count), "added": np.int64(added)},
            "angle": np.full((2, 2), count / 2, np.float32),
            "pixels": np.arange(count, count + 6, dtype=np.uint8).reshape(2, 3),
            "door": np.array(count % 2 == 1),
            "heard": np.array([said, said.upper()], object),
        }

    def action_spec(self) -> dict[str, Any]:
        return {
            "add": specs.BoundedArray((), np.int64, -9, 9, "add"),
            "wish": specs.BoundedArray((2,), np.float32, [-4, -8], [4, 8], "wish"),
            "talk": {"say": specs.StringArray((), name="say")},
        }

    def observation_spec(self) -> dict[str, Any]:
        return {
            "zone": {
                "count": specs.Array((), np.int32, "count"),
                "added": specs.Array((), np.int64, "added"),
            },
            "angle": specs.Array((2, 2), np.float32, "angle"),
            "pixels": specs.BoundedArray((2, 3), np.uint8, 0, 255, "pixels"),
            "door": specs.Array((), bool, "door"),
            "heard": specs.StringArray((2,), name="heard"),
        }


class Mirror(dm_env.Environment):
    """Observes its action; its sequences have two steps.

    Args:
      structure: of specs, of action and observation.
      reward: its spec; None for dm_env's own.
    """

    def __init__(self, structure: Any, reward: specs.Array | None = None):
        self._structure = structure
        self._reward = reward
        self._count = 0

    def reset(self) -> dm_env.TimeStep:
        self._count = 0
        return dm_env.restart(tree.map_structure(_first, self._structure))

    def step(self, action: Any) -> dm_env.TimeStep:
        self._count += 1
        reward: Any = 0.25 * self._count
        if self._reward is not None:
            reward = np.full(self._reward.shape, self._count, self._reward.dtype)
        end = dm_env.truncation if self._count == 2 else dm_env.transition
        return end(reward, action)

    def action_spec(self) -> Any:
        return self._structure

    def observation_spec(self) -> Any:
        return self._structure

    def reward_spec(self) -> Any:
        return super().reward_spec() if self._reward is None else self._reward


def _first(spec: specs.Array) -> Any:
    if any(size < 0 for size in spec.shape):
        return np.zeros([max(size, 0) for size in spec.shape], spec.dtype)
    return spec.generate_value()


class Wrong(dm_env.Environment):
    """Breaks what an environment promises.

    Args:
      what: is wrong.
    """

    def __init__(self, what: str):
        self._what = what

    def reset(self) -> dm_env.TimeStep:
        wrong: dict[str, Callable[[], Any]] = {
            "reset returns None": lambda: None,
            "reset is LAST": lambda: dm_env.termination(0.0, {"o": np.int32(0)}),
            "an observation too few": lambda: dm_env.restart({}),
            "an observation too many": lambda: dm_env.restart({"o": np.int32(0), "p": 1}),
            "another shape": lambda: dm_env.restart({"o": np.zeros(3, np.int32)}),
            "another dtype": lambda: dm_env.restart({"o": 0.5}),
        }
        return wrong.get(self._what, lambda: dm_env.restart({"o": np.int32(0)}))()

    def step(self, action: Any) -> dm_env.TimeStep:
        wrong: dict[str, Callable[[], Any]] = {
            "step returns None": lambda: None,
            "step is FIRST": lambda: dm_env.restart({"o": np.int32(0)}),
            "step is 7": lambda: dm_env.TimeStep(7, 0.0, 1.0, {"o": np.int32(0)}),
            "out of bounds": lambda: dm_env.transition(0.0, {"o": np.int32(99)}),
            "a reward of text": lambda: dm_env.transition("much", {"o": np.int32(0)}),
            "a discount of its own": lambda: dm_env.transition(0.0, {"o": np.int32(0)}, 0.5),
        }
        return wrong.get(self._what, lambda: dm_env.transition(0.0, {"o": np.int32(1)}))()

    def action_spec(self) -> Any:
        return {"a": specs.Array((), np.int32, "a")}

    def observation_spec(self) -> Any:
        if self._what == "complex numbers":
            return {"o": specs.Array((), np.complex64, "o")}
        if self._what == "names that are one":
            return {"a": {"b": specs.Array((), np.int32)}, "a.b": specs.Array((), np.int32)}
        if self._what == "the name reward":
            return {"reward": specs.Array((), np.int32)}
        return {"o": specs.BoundedArray((), np.int32, 0, 9, "o")}


class Informed(gymnasium.Env[Any, Any]):
    """A Gymnasium environment with infos of several kinds, of which some come and go.

    Args:
      first: is observed.
      length: of an episode.
      both: whether its end is terminated and truncated.
      fails_at: the step of an episode that raises; 0 for none.
      render_mode: as in Gymnasium.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "ansi"], "render_fps": 7}  # noqa: RUF012

    level = 1

    def __init__(
        self,
        first: int = 0,
        length: int = 3,
        both: bool = False,
        fails_at: int = 0,
        render_mode: str | None = None,
    ):
        self.observation_space = spaces.Dict(
            {
                "which": spaces.Discrete(9, start=-1),
                "box": spaces.Box(-9, 9, (2,), np.float32),
                "flags": spaces.MultiBinary(3),
            }
        )
        self.action_space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-2, 2, (1,), np.float64)))
        self.render_mode = render_mode
        self._first, self._length, self._both = int(first), int(length), both
        self._fails_at = fails_at
        self._count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._count = 0
        return self._observation(), {"seed": seed, "options": options, "first": self._first}

    def step(self, action: Any) -> Any:
        self._count += 1
        if self._count == self._fails_at:
            raise RuntimeError("the physics exploded")
        which, (push,) = action
        info: dict[str, Any] = {"number": int(which), "real": float(push), "text": "a"}
        if self._count == 1:
            info |= {"nested": {"yes": True, "deep": {"count": [1, 2]}}, "none": None}
        if self._count == 2:
            info |= {"array": np.arange(3, dtype=np.int16), "scalar": np.float32(0.5)}
        is_over = self._count == self._length
        return self._observation(), self._count / 2, is_over, is_over and self._both, info

    def render(self) -> Any:
        if self.render_mode == "ansi":
            return f"step {self._count}"
        return np.full((2, 2, 3), self._count, np.uint8)

    def masks(self) -> list[bool]:
        """Is called by clients."""
        return [True, self._count > 0]

    def _observation(self) -> dict[str, Any]:
        return {
            "which": np.int64(self._count - 1),
            "box": np.array([self._count / 4, -self._first / 8], np.float32),
            "flags": np.array([self._count & 1, self._count >> 1 & 1, 1], np.int8),
        }


class SpaceMirror(gymnasium.Env[Any, Any]):
    """Observes its action, of any space; at first a sample of the seed, which is not recorded.

    Args:
      space: of action and observation.
      first: what it observes at first.
    """

    def __init__(self, space: spaces.Space[Any], first: Any):
        self.observation_space = self.action_space = space
        self._first = first

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._first, {}

    def step(self, action: Any) -> Any:
        return action, 1.0, False, True, {}


class Exact(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A vector environment that is served as it is.

    Args:
      num_envs: the number of rows.
      mode: its autoreset mode.
      render_mode: as in Gymnasium.
    """

    def __init__(self, num_envs: int = 2, mode: str = "NextStep", render_mode: str | None = None):
        self.metadata = {
            "autoreset_mode": gymnasium.vector.AutoresetMode(mode),
            "render_modes": ["rgb_array"],
        }
        self.num_envs, self.render_mode = num_envs, render_mode
        self.single_observation_space = spaces.Box(-99, 99, (2,), np.float32)
        self.single_action_space = spaces.Discrete(4)
        batch = gymnasium.vector.utils.batch_space
        self.observation_space = batch(self.single_observation_space, num_envs)
        self.action_space = batch(self.single_action_space, num_envs)
        self._mode = mode
        self._counts = np.zeros(num_envs, int)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        self._counts[mask] = 0
        return self._observation(), {"seed": np.full(self.num_envs, _first_seed(seed))}

    def step(self, actions: Any) -> Any:
        ended = self._counts > np.arange(self.num_envs) + 1
        self._counts += 1
        if self._mode == "NextStep":
            self._counts[ended] = 0
        ends = self._counts > np.arange(self.num_envs) + 1
        rewards = np.asarray(actions, float)
        infos: dict[str, Any] = {"count": self._counts.copy()}
        observation = self._observation()
        if self._mode == "SameStep" and ends.any():
            final = np.full(self.num_envs, None)
            for row in np.flatnonzero(ends):
                final[row] = observation[row]
            infos |= {"final_obs": final, "_final_obs": ends.copy()}
            self._counts[ends] = 0
            observation = self._observation()
        return observation, rewards, ends, np.zeros(self.num_envs, bool), infos

    def _observation(self) -> Any:
        rows = np.arange(self.num_envs)
        return np.stack([self._counts, rows], axis=1).astype(np.float32)

    def render(self) -> Any:
        return tuple(np.full((1, 2, 3), count, np.uint8) for count in self._counts)


def _first_seed(seed: Any) -> int:
    if seed is None:
        return -1
    return int(seed if isinstance(seed, int) else seed[0])


class Pair(Game):
    """Two players, who see what the other did.

    Attributes:
      configured: is set when one is configured, of this class; None for none.
    """

    min_players = 2
    configured: threading.Event | None = None

    def __init__(self, length: int = 2):
        self._length = length
        self._count = 0
        self._free = ["left", "right"]
        self._did: dict[Hashable, int] = {}
        self.properties = Properties()
        self.properties.add("turn", lambda: self._count)

    def join(self, settings: Mapping[str, Any]) -> Hashable:
        side = settings.get("side", self._free[0] if self._free else "")
        if side not in self._free:
            raise ValueError(f"side {side!r} is not free")
        self._free.remove(side)
        return str(side)

    def leave(self, player: Hashable) -> None:
        self._free = sorted([*self._free, str(player)])

    def configure(self, settings: Mapping[str, Any]) -> None:
        if set(settings) - {"length"}:
            raise ValueError(f"no setting {min(settings)!r}")
        self._length = int(settings.get("length", self._length))
        if self.configured is not None:
            self.configured.set()

    def action_spec(self, player: Hashable) -> Any:
        return {"do": specs.DiscreteArray(5, np.int32, "do")}

    def observation_spec(self, player: Hashable) -> Any:
        return {
            "mine": specs.Array((), np.int32, "mine"),
            "others": specs.Array((), np.int32, "others"),
        }

    def reset(self) -> None:
        self._count, self._did = 0, {}

    def step(self, actions: Mapping[Hashable, Any]) -> None:
        self._count += 1
        self._did = {player: int(action["do"]) for player, action in actions.items()}

    def timestep(self, player: Hashable) -> dm_env.TimeStep:
        mine = self._did.get(player, -1)
        others = [did for other, did in self._did.items() if other != player]
        observation = {"mine": np.int32(mine), "others": np.int32(sum(others, -1))}
        if self._count == 0:
            return dm_env.restart(observation)
        end = dm_env.termination if self._count == self._length else dm_env.transition
        return end(float(mine), observation)


def players(**settings: Any) -> Any:
    """Returns an environment of PettingZoo: one agent begins late, and one ends early."""
    from pettingzoo import ParallelEnv

    class Players(ParallelEnv):
        metadata: dict[str, Any] = {"name": "players_v0", "render_modes": ["rgb_array"]}  # noqa: RUF012

        def __init__(self, length: int = 4, render_mode: str | None = None) -> None:
            self.possible_agents = ["early", "late", "whole"]
            self.agents: list[str] = []
            self.render_mode = render_mode
            self.state_space = spaces.Box(0, 9, (2,), np.int32)
            self._length, self._count = length, 0

        def observation_space(self, agent: str) -> Any:
            return spaces.Box(0, 9, (2,), np.float32)

        def action_space(self, agent: str) -> Any:
            return spaces.Discrete(4)

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            self._count, self.agents = 0, ["early", "whole"]
            infos = {agent: {"seed": seed, "options": options} for agent in self.agents}
            return {agent: self._observation() for agent in self.agents}, infos

        def step(self, actions: dict[str, int]) -> Any:
            self._count += 1
            taking_part = list(self.agents)
            if self._count == 2:
                taking_part.append("late")
            ended = {
                agent: self._count == (3 if agent == "early" else self._length)
                for agent in taking_part
            }
            self.agents = [agent for agent in taking_part if not ended[agent]]
            return (
                {agent: self._observation() for agent in taking_part},
                {agent: float(actions.get(agent, -1)) for agent in taking_part},
                ended,
                dict.fromkeys(taking_part, False),
                {agent: {"count": self._count} for agent in taking_part},
            )

        def render(self) -> Any:
            return np.full((1, 1, 3), self._count, np.uint8)

        def state(self) -> Any:
            return np.array([self._count, 7], np.int32)

        def _observation(self) -> Any:
            return np.array([self._count, 1], np.float32)

    return Players(**settings)


_KINDS: dict[str, Callable[..., Any]] = {
    "counter": Counter,
    "informed": Informed,
    "vector": Exact,
    "players": players,
    "pair": Pair,
    "wrong": Wrong,
}


def hosted(kind: str = "counter", **settings: Any) -> Any:
    """Makes an environment by the name of its kind, for servers that import what they serve."""
    return _KINDS[kind](**settings)
