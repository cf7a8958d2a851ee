"""Batches that other projects step: what they return in this process, and what clients get."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from dm_env_rpc_client import BatchedEnvironment, make
from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.protocol.batches import STEP_TYPE, WORLD_FORM
from dm_env_rpc_client.tensors import array_kinds
from tests.adaptors.gymnasium.known import REMOTE
from tests.adaptors.sameness import same

SEED = 5

WAYS = ("make_vec", "make", "BatchedEnvironment")


class Batch(NamedTuple):
    """How a batch is made, and what it takes.

    Attributes:
      make: makes it; its arguments are settings of a CreateWorld.
      needs: a package.
      settings: those that the test uses.
      mode: when its rows begin their next episodes, where it does not say so itself.
      library: the library of the arrays that it takes.
      form: what a server says of it after a step.
      seeds: whether its `reset` takes seeds.
      has_four: whether its steps return four values.
      rows: how many there are.
      least_ends: how many episodes end at least.
    """

    make: Callable[..., Any]
    needs: str = "gymnasium"
    settings: Mapping[str, Any] = {}  # it is not changed
    mode: str | None = None
    library: str = "numpy"
    form: str = ""
    seeds: bool = True
    has_four: bool = False
    rows: int = 3
    least_ends: int = 5


def plain(value: Any) -> Any:
    """Returns a value in which arrays are copies of NumPy's, and named parts are in dicts."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {field.name: plain(getattr(value, field.name)) for field in fields}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    if isinstance(value, np.ndarray | np.generic | bool | int | float | str) or value is None:
        return value.copy() if isinstance(value, np.ndarray) else value
    if not hasattr(value, "__array__"):
        return value
    found = array_kinds.to_numpy(value, "")
    return found.copy() if isinstance(found, np.ndarray) else found


def sampled(space: Any, random: np.random.Generator) -> Any:
    """Draws an element of a space of Gymnasium, or of the older gym."""
    if hasattr(space, "spaces"):
        return tuple(sampled(part, random) for part in space.spaces)
    if hasattr(space, "nvec"):
        return random.integers(0, space.nvec)
    if hasattr(space, "n"):
        return int(random.integers(space.n))
    return (0.9 * random.uniform(space.low, space.high)).astype(space.dtype)


class Returned(NamedTuple):
    """What a step of a batch returns; a reset returns only two of them."""

    observation: Any
    reward: Any = None
    terminated: Any = None
    truncated: Any = None
    infos: Any = None


class InProcess:
    """A batch in this process, whose results have Gymnasium's form and NumPy's arrays."""

    def __init__(self, batch: Batch):
        self.env = batch.make(batch.rows, **batch.settings)
        self._batch = batch
        single = getattr(self.env, "single_action_space", None)
        # That of EnvPool is of one row.
        self.action_space = batch_space(single, batch.rows) if single else self.env.action_space

    def reset(self, seed: int | None = None) -> Returned:
        if not self._batch.has_four:
            given = {"seed": seed} if self._batch.seeds else {}
            observation, infos = self.env.reset(**given)
            return Returned(self._of_space(plain(observation)), infos=plain(infos))
        if seed is not None:
            self.env.seed(seed)
        return Returned(plain(self.env.reset()), infos={})

    def step(self, action: Any) -> Returned:
        returned = plain(self.env.step(self._given(action)))
        if self._batch.has_four:
            observation, reward, done, infos = returned
            truncated = infos["truncation"].astype(bool)
            terminated = done.astype(bool) & ~truncated
        else:
            observation, reward, terminated, truncated, infos = returned
        # VMAS has a list of the rewards of each agent.
        reward = reward[0] if isinstance(reward, list) else reward
        reward = reward.reshape(-1).astype(np.float64)
        flags = terminated.astype(bool), truncated.astype(bool)
        return Returned(self._of_space(observation), reward, *flags, infos)

    def _given(self, action: Any) -> Any:
        if self._batch.library == "numpy":
            return action
        if isinstance(action, tuple):
            return tuple(map(self._given, action))
        return array_kinds.from_numpy(
            action, array_kinds.named(self._batch.library, "cpu"), "action"
        )

    def _of_space(self, observation: Any) -> Any:
        """VMAS has lists for the elements of a Tuple; those of EnvPool's FrozenLake are int32."""
        single = getattr(self.env, "single_observation_space", None)
        if isinstance(single, gymnasium.spaces.Discrete):
            return observation.astype(single.dtype)
        return tuple(observation) if isinstance(observation, list) else observation


Episodes = tuple[list[Any], list[Returned]]


def episodes(batch: Batch, steps: int) -> Episodes:
    """Steps a batch in this process.

    Returns:
      The actions, None for a reset, and what each of them returned; the first is a reset with a
      seed, as is one in the middle. Where the rows do not begin their episodes themselves, a reset
      does once all have ended.
    """
    own = InProcess(batch)
    random = np.random.default_rng(3)
    actions: list[Any] = [None]
    results = [own.reset(SEED)]
    for number in range(steps):
        last = results[-1]
        ended = last.terminated is not None and bool((last.terminated | last.truncated).all())
        if number == steps // 2 or (ended and batch.mode == "DISABLED"):
            actions.append(None)
            results.append(own.reset(SEED))
        else:
            actions.append(sampled(own.action_space, random))
            results.append(own.step(actions[-1]))
    with contextlib.suppress(AttributeError):  # Those of gym whose constructor was not called.
        own.env.close()
    return actions, results


def check(batch: Batch, way: str, address: str, played: Episodes) -> None:
    """Plays the same at a server, and compares every value.

    Args:
      batch: the batch.
      way: one of `WAYS`.
      address: of the server.
      played: what `episodes` returned.
    """
    if way == "make_vec":
        _check_vector(batch, address, *played)
        return
    settings = {"num_envs": batch.rows, **batch.settings}
    with (
        make(address, settings)
        if way == "make"
        else BatchedEnvironment(address, batch.rows, batch.settings) as env
    ):
        seed = {"seed": SEED} if batch.seeds else {}
        was_last = np.zeros(batch.rows, bool)
        mode = batch.mode
        for action, expected in zip(*played, strict=True):
            timestep = env.reset(seed) if action is None else env.step(named(action))
            parts = dict(timestep.observation)
            kind = parts.pop(STEP_TYPE, timestep.step_type)
            assert same(parts, named(expected.observation, "observation"))
            if action is None:
                assert (kind == 0).all()
                was_last[:] = False
                continue
            np.testing.assert_array_equal(timestep.reward, expected.reward)
            np.testing.assert_array_equal(timestep.discount, 1.0 - expected.terminated)
            np.testing.assert_array_equal(kind == 2, expected.terminated | expected.truncated)
            is_first = was_last if mode == "NEXT_STEP" else np.zeros(batch.rows, bool)
            np.testing.assert_array_equal(kind == 0, is_first)
            was_last = kind == 2
        if batch.form and isinstance(env, DmEnvAdaptor):
            assert PropertiesExtension(env.connection)[WORLD_FORM] == f"{batch.form}, {mode}"


def named(value: Any, name: str = "action") -> dict[str, Any]:
    """An action or an observation as dm_env's clients have it."""
    if isinstance(value, tuple):
        return {str(index): part for index, part in enumerate(value)}
    return value if isinstance(value, dict) else {name: value}


def _check_vector(batch: Batch, address: str, actions: list[Any], results: list[Returned]) -> None:
    envs = gymnasium.make_vec(
        REMOTE, batch.rows, address=address, create_world_settings=batch.settings
    )
    ends = 0
    with envs:  # type: ignore[attr-defined]  # It is a RemoteVectorEnv.
        assert envs.metadata["autoreset_mode"] is AutoresetMode[batch.mode or "NEXT_STEP"]
        for number, (action, expected) in enumerate(zip(actions, results, strict=True)):
            if action is None:
                observation, infos = envs.reset(seed=SEED if batch.seeds else None)
                got = Returned(observation, infos=infos)
            else:
                got = Returned(*envs.step(action))
                ends += int((got.terminated | got.truncated).sum())
            assert same(tuple(got), tuple(expected)), (number, got, expected)
    assert ends >= batch.least_ends
