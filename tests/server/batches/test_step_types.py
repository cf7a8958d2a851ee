"""Sequences of step types: rows obey the rules that a single environment obeys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client import DmEnvRpcError
from dm_env_rpc_client.protocol.batches import ROW_ERRORS, STEP_TYPE, row_errors
from dm_env_rpc_client.server import Game, Server
from tests.server.batches.steps import play
from tests.support.scripted import playing
from tests.support.serving import serving

FIRST, MID, LAST = dm_env.StepType

Step = tuple[Any, Any, Any]
"""The type of a step, its reward and its discount."""

BEGIN, GO_ON, END = (FIRST, None, None), (MID, 2.0, 1.0), (LAST, 3.0, 0.0)

SCRIPTS: dict[str, list[Step]] = {
    "as it should be": [BEGIN, GO_ON, END, BEGIN, GO_ON],
    "int": [(0, None, None), (1, 2.0, 1.0), (2, 3.0, 0.0), BEGIN, GO_ON],
    "int of NumPy": [BEGIN, (np.int64(2), 3.0, 0.0), (np.int8(0), None, None), GO_ON],
    "array": [BEGIN, (np.array(1), 2.0, 1.0), (np.array(2), 3.0, 1.0), BEGIN],
    "begins in the middle": [GO_ON, GO_ON, END, BEGIN],
    "a reward and a discount of FIRST": [(FIRST, 5.0, 0.0), GO_ON, (LAST, 1.0, 1.0), BEGIN],
    "no discount of LAST": [BEGIN, (LAST, 3.0, None), BEGIN],
    "no discount of MID": [BEGIN, (MID, 3.0, None), END],
    "no reward": [BEGIN, (MID, None, 1.0), (LAST, None, 1.0)],
}


class Scripted(dm_env.Environment):
    """Its TimeSteps are those of a script, whether it is reset or stepped; they count.

    Args:
      script: the name of the script.
      own_discount: whether its discounts are sent.
    """

    def __init__(self, script: str, own_discount: bool = False):
        self._script = {**SCRIPTS, **REFUSED}[script]
        if own_discount:
            self.discount_spec = lambda: specs.Array((), np.float32, "d")
        self._count = 0

    def reset(self) -> dm_env.TimeStep:
        return self._next("reset")

    def step(self, action: Any) -> dm_env.TimeStep:
        return self._next("step")

    def action_spec(self) -> specs.Array:
        return specs.DiscreteArray(2, name="action")

    def observation_spec(self) -> dict[str, specs.Array]:
        return {
            "count": specs.Array((), np.int64, "count"),
            "method": specs.StringArray((), name="method"),
        }

    def _next(self, method: str) -> dm_env.TimeStep:
        step = self._script[min(self._count, len(self._script) - 1)]
        self._count += 1
        return dm_env.TimeStep(*step, {"count": self._count, "method": method})


def _refused(*middle: Step) -> list[Step]:
    return [BEGIN, *middle, GO_ON, END, BEGIN]


REFUSED: dict[str, list[Step]] = {
    "seven": _refused((7, 2.0, 1.0)),
    "seven in an array": _refused((np.array(7), 2.0, 1.0)),
    "several": _refused((np.array([1, 1]), 2.0, 1.0)),
    "None": _refused((None, 2.0, 1.0)),
    "a text": _refused(("LAST", 2.0, 1.0)),
    "FIRST in the middle": _refused(BEGIN),
    "FIRST in the middle, as an int": _refused((0, None, None)),
    "begins with LAST": [END, BEGIN, GO_ON],
    "begins with LAST, as an int": [(2, 3.0, 0.0), BEGIN, GO_ON],
    "begins with seven": [(7, None, None), BEGIN, GO_ON],
}

TEXTS = {
    "seven": "step of Scripted returned a TimeStep of the type 7; expected dm_env.StepType.FIRST",
    "seven in an array": "step of Scripted returned a TimeStep of the type array(7)",
    "several": "step of Scripted returned a TimeStep of the type array([1, 1])",
    "None": "step of Scripted returned a TimeStep of the type None",
    "a text": "step of Scripted returned a TimeStep of the type 'LAST'",
    "FIRST in the middle": "step of Scripted returned a FIRST step in the middle of a sequence",
    "FIRST in the middle, as an int": "returned a FIRST step in the middle of a sequence",
    "begins with LAST": "reset of Scripted returned a LAST TimeStep; a sequence begins with a",
    "begins with LAST, as an int": "reset of Scripted returned a LAST TimeStep",
    "begins with seven": "reset of Scripted returned a TimeStep of the type 7",
}

server = serving(Scripted)


@pytest.mark.parametrize("own_discount", [False, True])
@pytest.mark.parametrize("script", SCRIPTS)
def test_rows_have_the_steps_of_a_single_environment(
    server: Server, script: str, own_discount: bool
) -> None:
    settings = {"script": script, "own_discount": own_discount}
    count = len(SCRIPTS[script])
    single = play(server.address, settings, count)
    assert play(server.address, {**settings, "num_envs": 2}, count) == single
    assert [told[3] for told in single if isinstance(told, tuple)] == list(range(1, count + 1))
    for told, (kind, *_) in zip(single, SCRIPTS[script], strict=True):
        assert isinstance(told, tuple)
        is_first = told[4] == "reset"
        # What `reset` returns begins a sequence.
        assert told[0] == (FIRST if is_first else kind)
        if is_first:
            assert told[1:3] == (0.0, 1.0)
    was_last = [told[0] == LAST for told in single]
    assert [told[4] == "reset" for told in single] == [True, *was_last[:-1]]


@pytest.mark.parametrize("script", REFUSED)
def test_rows_refuse_what_a_single_environment_refuses(server: Server, script: str) -> None:
    count = len(REFUSED[script])
    single = play(server.address, {"script": script}, count)
    rows = play(server.address, {"script": script, "num_envs": 2}, count)
    for told, other in zip(single, rows, strict=True):
        if isinstance(told, str):
            assert isinstance(other, str)
            assert TEXTS[script] in told
            assert TEXTS[script] in other
        else:
            assert told == other
    assert sum(isinstance(told, str) for told in rows) == 1
    assert all(told[0] in (FIRST, MID, LAST) for told in rows if isinstance(told, tuple))


def test_the_discount_of_a_sequence_that_ends_without_one_is_0(server: Server) -> None:
    for own_discount in (False, True):
        settings = {"script": "no discount of LAST", "own_discount": own_discount, "num_envs": 2}
        told = play(server.address, settings, 2)[1]
        assert told[2] == 0.0


class Unfit(Scripted):
    """Its LAST TimeSteps have an observation that does not conform."""

    def __init__(self) -> None:
        super().__init__("as it should be")

    def step(self, action: Any) -> dm_env.TimeStep:
        timestep = super().step(action)
        if timestep.last():
            return timestep._replace(observation={**timestep.observation, "count": 0.5})
        return timestep


def test_a_sequence_whose_last_step_does_not_conform_is_not_stepped_further() -> None:
    with playing(Unfit, {"num_envs": 2}) as env:
        env.reset()
        action = {"action": np.zeros(2, np.int32)}
        before = env.step(action).observation
        failed = env.step(action).observation
        assert "which is not an integer" in row_errors(failed[ROW_ERRORS], 2)[1]
        assert failed["count"].tolist() == before["count"].tolist() == [2, 2]
        assert failed[STEP_TYPE].tolist() == [1, 1]
        after = env.step(action).observation
        assert after["method"].tolist() == ["reset", "reset"]
        assert after[STEP_TYPE].tolist() == [0, 0]
        assert env.step(action).observation["method"].tolist() == ["step", "step"]


class FailingReset(Scripted):
    """Its second reset raises."""

    resets = 0

    def __init__(self) -> None:
        super().__init__("begins in the middle")
        self._script = [GO_ON] * 9

    def reset(self) -> dm_env.TimeStep:
        self.resets += 1
        if self.resets == 2:
            raise OSError("no device")
        return super().reset()


def test_a_sequence_that_failed_to_begin_begins_with_the_next_step() -> None:
    with playing(FailingReset, {"num_envs": 2}) as env:
        action = {"action": np.zeros(2, np.int32)}
        env.reset()
        env.step(action)
        observation = env.reset({"reset_mask": [False, True]}).observation
        assert row_errors(observation[ROW_ERRORS], 2) == {1: "OSError: no device"}
        observation = env.step(action).observation
        assert observation["method"].tolist() == ["step", "reset"]
        assert observation[STEP_TYPE].tolist() == [1, 0]


class Seven(Game):
    """Its second TimeStep has a type that there is not."""

    is_lock_step = False
    min_players = 1

    def __init__(self) -> None:
        self._steps = 0

    def join(self, settings: Mapping[str, Any]) -> int:
        return 1

    def leave(self, player: Any) -> None: ...

    def action_spec(self, player: Any) -> Any:
        return specs.DiscreteArray(2, name="action")

    def observation_spec(self, player: Any) -> Any:
        return specs.Array((), np.int64, "count")

    def reset(self) -> None:
        self._steps = 0

    def step(self, actions: Any) -> None:
        self._steps += 1

    def timestep(self, player: Any) -> dm_env.TimeStep:
        kind: Any = 7 if self._steps else FIRST
        return dm_env.TimeStep(kind, 0.0, 1.0, np.int64(self._steps))


def test_games_return_types_of_dm_env() -> None:
    with playing(Seven, {}) as env:
        env.reset()
        with pytest.raises(DmEnvRpcError, match="timestep of Seven returned a TimeStep of the typ"):
            env.step({"action": 0})
