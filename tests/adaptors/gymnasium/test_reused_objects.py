"""Environments that reuse infos and arrays, and callers that change what they were given."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import dm_env
import gymnasium
import numpy as np
import pytest
from dm_env import specs
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client import BatchedEnvironment
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.server import Catch, serve
from dm_env_rpc_client.tensors.specs import VariableArray
from tests.adaptors.sameness import same

ROWS = 2

SAME = AutoresetMode.SAME_STEP

PLACES: dict[str, dict[str, Any]] = {
    "batch": {},
    "streams": {"num_batches": 0},
    "two batches": {"num_batches": 2},
}


class Reusing(gymnasium.Env[Any, Any]):
    """Keeps one info, and all that is in it, and one observation; episodes have two steps.

    Args:
      name: what is in the info, so that rows differ.
    """

    def __init__(self, name: int = 0):
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Box(-99, 99, (1,), np.float64)
        self._name = name
        self._steps = 0
        self._seen = np.zeros(1)
        self._pair = np.zeros(2)
        self._list: list[int] = [0]
        self._mask = np.zeros(2, np.int8)
        self._texts = np.array(["", "x"], object)
        self._nested: dict[str, Any] = {}
        self._info: dict[str, Any] = {
            "pair": self._pair,
            "list": self._list,
            "action_mask": self._mask,
            "texts": self._texts,
            "nested": self._nested,
            "within": (self._list, {"pair": self._pair}),
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self._steps = 0
        return self._write(), self._info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        self._steps += 1
        return self._write(), 1.0, self._steps == 2, False, self._info

    def _write(self) -> Any:
        number = 10 * self._name + self._steps
        self._seen[:] = self._pair[:] = self._list[0] = number
        self._mask[:] = self._steps
        self._texts[0] = f"text {number}"
        self._nested["number"] = self._info["number"] = number
        return self._seen


class Sharing(Reusing):
    """All rows of a process have one info, with the values of the row that stepped last."""

    common: ClassVar[dict[str, Any]] = {}

    def _write(self) -> Any:
        seen = super()._write()
        self.common.update(self._info)
        return seen

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        return super().reset()[0], self.common

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        return (*super().step(action)[:4], self.common)


class Fresh(Reusing):
    """The same values, in an info and arrays of their own: what the others are compared with."""

    def _write(self) -> Any:
        steps = self._steps
        Reusing.__init__(self, self._name)
        self._steps = steps
        return super()._write()


def _names(index: int) -> dict[str, int]:
    return {"name": index + 1}


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
@pytest.mark.parametrize(
    ("reusing", "place"),
    [
        *((Reusing, place) for place in PLACES),
        # Two batches step at the same time, and the dict would be of both.
        *((Sharing, place) for place in PLACES if place != "two batches"),
    ],
)
def test_infos_are_those_of_the_step(
    reusing: type[Reusing], place: str, mode: AutoresetMode
) -> None:
    check_infos(reusing, place, mode, None)


def test_infos_of_several_processes_are_those_of_the_step() -> None:
    check_infos(Sharing, "batch", SAME, 2)


def check_infos(
    reusing: type[Reusing], place: str, mode: AutoresetMode, processes: int | None
) -> None:
    Sharing.common.clear()
    results = []
    for factory in (Fresh, reusing):
        with (
            serve(factory, processes=processes) as server,
            RemoteVectorEnv(
                server.address, ROWS, _names, autoreset_mode=mode, **PLACES[place]
            ) as envs,
        ):
            seen: list[Any] = [envs.reset()]
            for _ in range(4):
                if mode is AutoresetMode.DISABLED and len(seen) == 3:
                    seen.append(envs.reset(options={"reset_mask": np.ones(ROWS, np.bool_)}))
                seen.append(envs.step(np.zeros(ROWS, np.int64)))
            results.append(seen)
    expected, found = results
    for mine, others in zip(found, expected, strict=True):
        assert same(mine, others)
    final = expected[2][4]
    if mode is SAME:
        assert final["final_info"]["number"].tolist() == [12, 22]
        assert [row.tolist() for row in final["final_obs"]] == [[12.0], [22.0]]
        assert final["number"].tolist() == [10, 20]
    else:
        assert final["number"].tolist() == [12, 22]


class Kinds(gymnasium.Env[Any, Any]):
    """Observations of many kinds, with numbers that count."""

    def __init__(self) -> None:
        self.action_space = spaces.Discrete(2)
        box = spaces.Box(-99, 99, (2,), np.float64)
        self.observation_space = spaces.Dict(
            {
                "box": box,
                "one": spaces.OneOf((box, spaces.Discrete(3))),
                "number": spaces.Discrete(9),
            }
        )
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self._steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        self._steps += 1
        return self._seen(), 1.0, False, False, {}

    def _seen(self) -> Any:
        values = np.full(2, self._steps, np.float64)
        return {"box": values, "one": (0, values.copy()), "number": self._steps}


class Boxes(Kinds):
    """Observations that are one array."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-99, 99, (2,), np.float64)

    def _seen(self) -> Any:
        return np.full(2, self._steps, np.float64)


class Words(dm_env.Environment):
    """Observations of variable length beside others."""

    def __init__(self) -> None:
        self._steps = 0

    def reset(self) -> dm_env.TimeStep:
        self._steps = 0
        return dm_env.restart(self._seen())

    def step(self, action: Any) -> dm_env.TimeStep:
        self._steps += 1
        return dm_env.transition(1.0, self._seen())

    def action_spec(self) -> specs.Array:
        return specs.DiscreteArray(2, name="action")

    def observation_spec(self) -> Any:
        return {
            "few": VariableArray((-1,), np.int64, "few"),
            "pair": specs.Array((2,), np.float32, "pair"),
        }

    def _seen(self) -> Any:
        return {
            "few": np.full(1 + self._steps, self._steps),
            "pair": np.full(2, self._steps, np.float32),
        }


def _spoil(value: Any) -> None:
    """Changes all arrays of an observation, in place."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        value *= 0
        value += 77
    elif isinstance(value, dict):
        for part in value.values():
            _spoil(part)
    elif isinstance(value, list | tuple | np.ndarray):
        for part in value:
            _spoil(part)


ENVIRONMENTS: dict[str, tuple[Callable[[], Any], bool]] = {
    "Catch": (Catch, True),
    "boxes": (Boxes, True),
    "kinds": (Kinds, True),
    "variable lengths": (Words, False),
}
"""What makes them, and whether there are batches of them."""


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, SAME], ids=lambda mode: mode.name)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_what_a_caller_does_with_its_observations_changes_no_other_row(
    name: str, place: str, mode: AutoresetMode
) -> None:
    factory, has_batches = ENVIRONMENTS[name]
    with serve(factory) as server:
        opened = functools.partial(
            RemoteVectorEnv, server.address, 3, autoreset_mode=mode, **PLACES[place]
        )
        with opened() as envs, opened() as other:
            assert (server.world_count < 6) == (has_batches and place != "streams")
            for each in (envs, other):
                each.reset(seed=3) if name != "variable lengths" else each.reset()
            for steps in (1, 2, 1):
                for _ in range(steps):
                    actions = np.ones(3, np.int64)
                    expected = other.step(actions)
                    observation, *rest = envs.step(actions)
                    assert same(observation, expected[0])
                    assert same(rest[:3], list(expected[1:4]))
                    _spoil(observation)
                for mask in ([True, False, True], [False, False, True]):
                    options = {"reset_mask": np.array(mask)}
                    expected_first, _ = other.reset(options=dict(options))
                    found, _ = envs.reset(options=dict(options))
                    if name == "Catch":  # The column of the ball is random.
                        assert (
                            same(found["board"][1], expected_first["board"][1])
                            if isinstance(found, dict)
                            else same(found[1], expected_first[1])
                        )
                    else:
                        assert same(found, expected_first)
                    _spoil(found)


@pytest.mark.parametrize("place", PLACES)
def test_what_a_caller_does_with_the_timesteps_of_a_batch_changes_nothing(place: str) -> None:
    with serve(Boxes) as server, BatchedEnvironment(server.address, 3, **PLACES[place]) as envs:
        _spoil(envs.reset().observation)
        for count in range(1, 5):
            timestep = envs.step({"action": np.zeros(3, np.int64)})
            (observation,) = timestep.observation.values()
            assert observation.tolist() == [[count, count]] * 3
            _spoil(timestep.observation)
            timestep.reward[:] = 5
            # One row is received by itself.
            envs.send({"action": np.zeros(3, np.int64)})
            (observation,) = envs.recv(1, 1)[0].observation.values()
            assert observation.shape == (1, 2)
            envs.recv(2)
            envs.reset()
            for _ in range(count):
                envs.step({"action": np.zeros(3, np.int64)})


def test_arrays_that_stay_are_the_same_ones() -> None:
    for place in PLACES.values():
        with (
            serve(Boxes) as server,
            RemoteVectorEnv(server.address, 2, copy=False, **place) as envs,
        ):
            first, _ = envs.reset()
            second = envs.step(np.zeros(2, np.int64))[0]
            assert second is first
            third, _ = envs.reset(options={"reset_mask": np.array([True, False])})
            assert third is first
            assert third.tolist() == [[0.0, 0.0], [1.0, 1.0]]
