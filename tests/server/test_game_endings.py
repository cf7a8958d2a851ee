"""Games in which the sequence ends for some players before it ends for the others."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client import (
    DmEnvAdaptor,
    DmEnvRpcError,
    dm_env_rpc_pb2,
)
from dm_env_rpc_client.server import Game
from tests.server import tables
from tests.support.scripted import settles
from tests.support.stopwatch import patience

FIRST, MID, LAST = dm_env.StepType


class Elimination(Game):
    """Players are out after `lives[player]` steps; the last one wins.

    Args:
      lives: for each player the number of steps; 0 to take no part at all; negative to take part
        from step -n on, until the others are out.
      min_players: see `Game`.
      is_lock_step: see `Game`.
      says_none: whether players that are out have no TimeStep; otherwise it stays a LAST one.
    """

    def __init__(
        self,
        lives: Sequence[int],
        min_players: int | None = None,
        is_lock_step: bool = True,
        says_none: bool = True,
    ):
        self.is_lock_step = is_lock_step
        self._lives = list(map(int, lives))
        self._least = len(self._lives) if min_players is None else min_players
        self._says_none = says_none
        self._free = list(range(len(self._lives)))
        self._turn = 0

    @property
    def min_players(self) -> int:
        return self._least

    def join(self, settings: Mapping[str, Any]) -> int:
        return self._free.pop(0)

    def leave(self, player: Any) -> None:
        self._free.append(player)

    def action_spec(self, player: Any) -> Any:
        return specs.DiscreteArray(2)

    def observation_spec(self, player: Any) -> Any:
        return specs.Array((2,), np.int32)

    def reset(self) -> None:
        self._turn = 0
        self.acted: list[int] = []

    def step(self, actions: Mapping[Any, Any]) -> None:
        self._turn += 1
        self.acted = sorted(actions)

    def timestep(self, player: Any) -> dm_env.TimeStep | None:
        observation = np.array([self._turn, sum(1 << each for each in self.acted)], np.int32)
        lives = self._lives[player]
        if lives < 0:
            if self._turn < -lives:
                return None
            lives = max(self._lives)
        if lives == 0 or (self._says_none and self._turn > lives):
            return None
        if self._turn >= lives:
            return dm_env.termination(float(player), observation)
        if self._turn == 0:
            return dm_env.restart(observation)
        return dm_env.transition(0.0, observation)


def table(count: int, game: type[Game] = Elimination, **settings: Any) -> Any:
    return tables.table(count, game, **settings)


def step_all(*envs: DmEnvAdaptor) -> list[dm_env.TimeStep]:
    return [future.result(20) for future in [env.step_async({"action": 1}) for env in envs]]


@pytest.mark.parametrize("says_none", [True, False])
def test_players_are_out_one_after_the_other(says_none: bool) -> None:
    with table(3, lives=[1, 3, 2], says_none=says_none) as (_, (a, b, c)):
        for _ in range(2):
            assert [step.step_type for step in step_all(a, b, c)] == [FIRST] * 3
            steps = step_all(a, b, c)
            assert [step.step_type for step in steps] == [LAST, MID, MID]
            assert [step.discount for step in steps] == [0.0, 1.0, 1.0]
            # Nobody waits for the player that is out, and its action is not asked for.
            steps = step_all(b, c)
            assert [step.step_type for step in steps] == [MID, LAST]
            assert steps[0].observation["observation"].tolist() == [2, 0b110]
            (last,) = step_all(b)
            assert (last.step_type, last.reward) == (LAST, 1.0)


def test_the_next_step_of_a_player_that_is_out_waits_for_the_next_sequence() -> None:
    with table(2, lives=[1, 3]) as (_, (a, b)):
        step_all(a, b)
        assert step_all(a, b)[0].last()
        waiting = a.step_async({})
        for kind in (MID, LAST):
            assert step_all(b)[0].step_type is kind
        assert not waiting.done()
        assert step_all(b)[0].first()
        assert waiting.result(20).first()


def test_a_player_that_waits_outlives_the_timeout_while_steps_are_taken() -> None:
    timeout = patience(1.2)
    with table(2, step_timeout=timeout, lives=[1, 1000]) as (_, (a, b)):
        step_all(a, b)
        step_all(a, b)
        waiting = a.step_async({})
        quiet = threading.Event()
        for _ in range(5):
            quiet.wait(timeout / 4)
            assert step_all(b)[0].mid()
        assert not waiting.done()
        with pytest.raises(DmEnvRpcError, match="player 1 has not stepped"):
            waiting.result(20)


def test_the_others_go_on_if_a_player_leaves_that_is_out() -> None:
    with table(3, lives=[1, 4, 3]) as (made, (a, b, c)):
        step_all(a, b, c)
        assert step_all(a, b, c)[0].last()
        a.close()
        assert [step.step_type for step in step_all(b, c)] == [MID, MID]
        # One that takes its place waits for the next sequence, and then nobody waits for it.
        late = made.join().step_async({})
        assert [step.step_type for step in step_all(b, c)] == [MID, LAST]
        assert step_all(b)[0].last()
        assert [step.step_type for step in step_all(b, c)] == [FIRST, FIRST]
        assert late.result(20).first()


def test_the_sequence_is_over_when_the_only_player_in_it_leaves() -> None:
    with table(2, lives=[1, 9], min_players=1) as (_, (a, b)):
        step_all(a, b)
        assert step_all(a, b)[0].last()
        waiting = a.step_async({})
        b.close()
        assert waiting.result(20).first()


def test_players_that_take_part_later_or_not_at_all() -> None:
    with table(3, lives=[4, 0, -2]) as (_, (a, b, c)):
        never, later = b.step_async({}), c.step_async({})
        assert step_all(a)[0].first()
        assert step_all(a)[0].mid()
        assert not later.done()
        assert step_all(a)[0].mid()
        assert later.result(20).first()
        steps = step_all(a, c)
        assert [step.step_type for step in steps] == [MID, MID]
        assert steps[0].observation["observation"].tolist() == [3, 0b101]
        assert [step.step_type for step in step_all(a, c)] == [LAST, LAST]
        assert not never.done()


def test_a_player_that_takes_part_while_no_step_of_it_waits() -> None:
    with table(2, step_timeout=patience(1.0), lives=[9, -2]) as (_, (a, b)):
        waiting = b.step_async({})
        assert step_all(a)[0].first()
        with pytest.raises(DmEnvRpcError, match="no step was taken within"):
            waiting.result(20)
        assert [step.step_type for _ in range(2) for step in step_all(a)] == [MID, MID]
        # The others wait for it from here on, and it observes first what it takes part in.
        (first,) = step_all(b)
        assert (first.step_type, first.observation["observation"].tolist()) == (FIRST, [2, 0b01])
        steps = step_all(a, b)
        assert [step.step_type for step in steps] == [MID, MID]
        assert steps[0].observation["observation"].tolist() == [3, 0b11]


def test_a_reset_world_before_such_a_player_has_stepped() -> None:
    with table(2, step_timeout=patience(1.0), lives=[9, -1]) as (made, (a, b)):
        waiting = b.step_async({})
        assert step_all(a)[0].first()
        with pytest.raises(DmEnvRpcError, match="no step was taken within"):
            waiting.result(20)
        assert step_all(a)[0].mid()
        resetting = made.spectator.submit(dm_env_rpc_pb2.ResetWorldRequest(world_name=made.world))

        def is_interrupted() -> bool:
            return bool(step_all(a)[0].last())

        assert settles(is_interrupted)
        resetting.result(20)
        later = b.step_async({})
        assert step_all(a)[0].first()
        assert not later.done()
        assert step_all(a)[0].mid()
        first = later.result(20)
        assert (first.step_type, first.observation["observation"].tolist()) == (FIRST, [1, 0b01])


def test_out_of_lock_step_each_player_hears_of_its_own_end() -> None:
    with table(2, lives=[2, 3], is_lock_step=False) as (_, (a, b)):
        assert step_all(a)[0].first()
        assert step_all(b)[0].first()
        # This step is the second of the sequence, which ends it for the other one.
        assert step_all(b)[0].mid()
        assert step_all(a)[0].last()
        waiting = a.step_async({})
        assert step_all(b)[0].last()
        assert waiting.result(20).first()


def test_a_reset_of_the_world_does_not_wait_for_players_that_are_out() -> None:
    with table(2, lives=[1, 9]) as (made, (a, b)):
        step_all(a, b)
        assert step_all(a, b)[0].last()
        waiting = a.step_async({})
        reset = made.spectator.submit(dm_env_rpc_pb2.ResetWorldRequest(world_name=made.world))
        heard = step_all(b)[0]
        while heard.mid():  # The request may arrive after the step.
            heard = step_all(b)[0]
        assert (heard.step_type, heard.discount) == (LAST, 1.0)
        reset.result(20)
        assert step_all(b)[0].first()
        assert waiting.result(20).first()


def test_games_that_break_the_rules_are_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    expected = pytest.raises(DmEnvRpcError, match="in which no player takes part")
    with table(1, lives=[0]) as (_, (a,)), expected:
        a.step({})

    class Vanishing(Elimination):
        def timestep(self, player: Any) -> dm_env.TimeStep | None:
            return None if self._turn == 1 else super().timestep(player)

    with table(1, game=Vanishing, lives=[5]) as (made, (a,)):
        a.reset()
        with pytest.raises(DmEnvRpcError, match="return a LAST TimeStep before returning None"):
            a.step({"action": 1})
        assert settles(lambda: len(made.server.errors) == 1)
