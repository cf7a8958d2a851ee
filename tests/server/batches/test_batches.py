"""Worlds whose arrays have a row for each environment: made of a factory, or by the factory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import dm_env
import numpy as np
import numpy.typing as npt
import pytest
import tree
from dm_env import specs

from dm_env_rpc_client import DmEnvAdaptor, DmEnvRpcError, make
from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.server import serve
from dm_env_rpc_client.server.row_turns import Turns, Waits
from dm_env_rpc_client.tensors import nesting
from dm_env_rpc_client.tensors.settings import pack_settings
from dm_env_rpc_client.tensors.specs import VariableArray, sample
from tests.support.scripted import playing, settles

ROWS = 3


class Counting(dm_env.Environment):
    """An episode has `length` steps; the reward is the action, the observation all of them.

    Args:
      length: the steps of an episode.
      fails_at: the number of a step, since it was made, that raises an error; None for none.
      size: the shape of the observation.
    """

    def __init__(self, length: int = 4, fails_at: int | None = None, size: int = 2):
        self._length = length
        self._fails_at = -1 if fails_at is None else fails_at
        self._size = size
        self._steps = self._taken = 0
        self.is_closed = False

    def reset(self) -> dm_env.TimeStep:
        self._steps = 0
        return dm_env.restart(self._observed(0.0))

    def step(self, action: Any) -> dm_env.TimeStep:
        self._taken += 1
        if self._taken == self._fails_at:
            raise OSError(f"no joystick in step {self._taken}")
        self._steps += 1
        observation = self._observed(float(action["push"]))
        if self._steps < self._length:
            return dm_env.transition(float(action["push"]), observation)
        end = dm_env.truncation if self._length % 2 else dm_env.termination
        return end(float(action["push"]), observation)

    def action_spec(self) -> dict[str, specs.Array]:
        return {"push": specs.BoundedArray((), np.float32, -1, 1, "push")}

    def observation_spec(self) -> dict[str, Any]:
        return {
            "seen": specs.Array((self._size,), np.float64, "seen"),
            "nested": {"steps": specs.Array((), np.int64, "steps")},
        }

    def close(self) -> None:
        self.is_closed = True

    def _observed(self, push: float) -> dict[str, Any]:
        return {"seen": np.full(self._size, push), "nested": {"steps": np.int64(self._steps)}}


class Discounted(Counting):
    """Has a discount and a reward of its own kinds."""

    def reward_spec(self) -> specs.Array:
        return specs.Array((2,), np.float32, "reward")

    def discount_spec(self) -> specs.Array:
        return specs.Array((), np.float32, "discount")

    def step(self, action: Any) -> dm_env.TimeStep:
        timestep = super().step(action)
        reward = np.full(2, timestep.reward, np.float32)
        discount = np.float32(0.25) if timestep.mid() else np.float32(0.0)
        return timestep._replace(reward=reward, discount=discount)


def actions_of(env: DmEnvAdaptor, random: np.random.Generator) -> Any:
    """Random actions within the bounds of the specs."""

    def sampled(spec: specs.Array) -> Any:
        if isinstance(spec, specs.StringArray):
            return np.array([f"say {n}" for n in random.integers(100, size=spec.shape)], object)
        return sample(spec, random)

    return tree.map_structure(sampled, env.action_spec())


def push(*values: float) -> dict[str, npt.NDArray[np.float32]]:
    return {"push": np.array(values, np.float32)}


def test_a_mask_says_in_which_rows_a_sequence_begins() -> None:
    with playing(Counting, {"num_envs": ROWS, "rows.length": [9, 9, 9]}) as env:
        env.reset()
        stepped(env, push(0.1, 0.2, 0.3))
        mask = np.array([False, True, False])
        values = begun(env, {batches.RESET_MASK: mask})
        assert values[batches.STEP_TYPE].tolist() == [1, 0, 1]
        assert values["nested.steps"].tolist() == [1, 0, 1]
        # A setting that the environment does not take itself makes it anew, in these rows only.
        values = begun(env, {batches.RESET_MASK: mask, "rows.length": [1, 1, 1]})
        assert values["nested.steps"].tolist() == [1, 0, 1]
        values = stepped(env, push(0.1, 0.2, 0.3))
        assert values[batches.STEP_TYPE].tolist() == [1, 2, 1]
        values = begun(env)
        assert values[batches.STEP_TYPE].tolist() == [0, 0, 0]


def test_resets_before_a_step_add_up() -> None:
    """As the guide says; also one of all rows and one of some."""
    mask = np.array([False, True, False])
    with playing(Counting, {"num_envs": ROWS}) as env:
        for settings in ([{}, {batches.RESET_MASK: mask}], [{batches.RESET_MASK: mask}, {}]):
            env.reset()
            stepped(env, push(0.1, 0.2, 0.3))
            for each in settings:
                env.connection.send(dm_env_rpc_pb2.ResetRequest(settings=pack_settings(each)))
            values = stepped(env, push(0, 0, 0))
            assert values[batches.STEP_TYPE].tolist() == [0, 0, 0]


def varying(seed: int = 0) -> dm_env.Environment:
    return Counting(size=2 + seed)


class Variable(Counting):
    def observation_spec(self) -> Any:
        return {"words": VariableArray((-1,), np.int64, "words")}


class Reserved(Counting):
    def observation_spec(self) -> Any:
        return {"step_type": specs.Array((), np.int64, "step_type")}


def large() -> dm_env.Environment:
    return Counting(size=1 << 20)


class Boundless(Counting):
    """Its number of elements is more than an integer of 64 bits holds."""

    def observation_spec(self) -> Any:
        return {"seen": specs.Array((1 << 32, 1 << 32), np.uint8, "seen")}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"reset_mask": [True, False]}, r"expected bool \[3\] with at least one True"),
        ({"reset_mask": [False] * 3}, "at least one True"),
        ({"rows.length": [1]}, r"expected \[3, ...\]"),
    ],
)
def test_resets_that_are_wrong_change_nothing(settings: dict[str, Any], text: str) -> None:
    with playing(Counting, {"num_envs": 3}) as env:
        env.reset()
        with pytest.raises(DmEnvRpcError, match=text):
            env.reset(settings)
        assert begun(env)[batches.STEP_TYPE].tolist() == [0, 0, 0]


class Wordy(Counting):
    def step(self, action: Any) -> dm_env.TimeStep:
        raise OSError("no " * 1_000_000)


class Liar(Counting):
    """Its observation has another shape, or another dtype, than its spec says."""

    def step(self, action: Any) -> dm_env.TimeStep:
        step = super().step(action)
        seen: Any = np.zeros(3) if self._steps == 1 else np.array(["a", "b"])
        return step._replace(observation={**step.observation, "seen": seen})


class Waiting(Counting):
    """Waits for a device, and, if it is told to, until another one waits at the same time."""

    are_together = False
    inside = most = 0
    changed = threading.Condition()

    def step(self, action: Any) -> dm_env.TimeStep:
        with self.changed:
            Waiting.inside += 1
            Waiting.most = max(self.most, self.inside)
            self.changed.notify_all()
            if self.are_together:
                self.changed.wait_for(lambda: self.most > 1, 20)
        time.sleep(0.02)  # As long as the device takes.
        with self.changed:
            Waiting.inside -= 1
        return super().step(action)


def test_rows_that_wait_do_so_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # Eight on streams of their own would, too. Those of the first batch find out.
    with serve(Waiting) as server:
        action = push(*np.linspace(-1, 1, 16))
        settings = {"num_envs": 16, "length": 100}
        with make(server.address, settings) as env:
            env.reset()
            for _ in range(3):
                first = env.step(action)
            assert not have_threads()
        with make(server.address, settings) as env:
            env.reset()
            monkeypatch.setattr(Waiting, "are_together", True)
            monkeypatch.setattr(Waiting, "most", 0)
            for _ in range(3):
                np.testing.assert_array_equal(env.step(action).reward, action["push"])
            assert Waiting.most > 1
            assert first.reward.shape == (16,)
            assert have_threads()
    assert settles(lambda: not have_threads())


def have_threads() -> bool:
    return any(thread.name.startswith("row") for thread in threading.enumerate())


def test_a_wait_that_does_not_come_again_makes_no_threads() -> None:
    """On a busy machine rows that computed were taken for such that wait, for good."""
    waits = Waits()
    turns = Turns(4, waits)

    def wait(*_: object) -> None:
        time.sleep(0.002)  # As long as the device takes.

    def compute(*_: object) -> None: ...

    for act in [wait, compute] * 4:
        turns.take(range(4), act, [None] * 4, {})
        assert not waits.has_threads
    for _ in range(3):  # One row and a reset say nothing.
        turns.take(range(4), wait, [None] * 4, {})
        turns.take(range(1), compute, [None] * 4, {})
        turns.take(range(4), compute, [None] * 4)
    assert waits.has_threads
    turns.close()


class Undoing(Counting):
    """A row that takes a gain, which the rows after the first cannot undo completely."""

    reset_settings = ("gain",)
    made: ClassVar[list[Undoing]] = []

    def __init__(self) -> None:
        super().__init__()
        self.gain = 0
        self.made.append(self)

    def configure(self, settings: Mapping[str, Any]) -> Callable[[], None]:
        if settings["gain"] < 0:
            raise ValueError("no such gain")
        before, self.gain = self.gain, settings["gain"]

        def undo() -> None:
            self.gain = before
            if self is not self.made[0]:
                raise OSError("not undone completely")

        return undo


def test_settings_are_undone_in_all_rows_although_one_raises() -> None:
    Undoing.made.clear()
    with serve(Undoing) as server, make(server.address, {"num_envs": 4}) as env:
        env.reset()
        with pytest.raises(DmEnvRpcError, match="not undone completely"):
            env.reset({"rows.gain": [2, 2, 2, -1]})
        assert [row.gain for row in Undoing.made] == [0] * 4


def stepped(env: DmEnvAdaptor, action: Any) -> dict[str, Any]:
    """Takes a step and returns its values by flat name, with the type of the step."""
    return values_of(env, env.step(action))


def begun(env: DmEnvAdaptor, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Resets and returns the values of the first step."""
    return values_of(env, env.reset(settings or {}))


def values_of(env: DmEnvAdaptor, timestep: dm_env.TimeStep) -> dict[str, Any]:
    flat = nesting.flatten_dict(timestep.observation, nesting.SEPARATOR)
    # A FIRST step has neither; what is sent for those of rows is 0 and 1.
    reward, discount = timestep.reward, timestep.discount
    if reward is None:
        reward = tree.map_structure(lambda spec: np.zeros(spec.shape), env.reward_spec())
    flat["reward"] = reward
    flat["discount"] = np.ones(env.discount_spec().shape) if discount is None else discount
    flat.setdefault(batches.STEP_TYPE, np.uint8(timestep.step_type))
    return flat
