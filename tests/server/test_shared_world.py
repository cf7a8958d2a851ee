"""Several agents in one world: lock-step, resets for all, agents that leave and vanish."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import dm_env
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dm_env_rpc_client import (
    Connection,
    ConnectionLostError,
    DmEnvAdaptor,
    DmEnvRpcError,
    connect,
    create_world,
    join_world,
    reset_world,
)
from dm_env_rpc_client.server import Race, serve
from dm_env_rpc_client.server.errors import RequestError
from dm_env_rpc_client.server.worlds.shared_world import SharedWorld
from tests.server.tables import Table, table
from tests.support.scripted import settles
from tests.support.stopwatch import patience, time_limit

FIRST, MID, LAST = dm_env.StepType
RUN, STAY = {"move": 1}, {"move": 0}


class Crowd(Race):
    """A race that goes on with whoever is there."""

    @property
    def min_players(self) -> int:
        return 1


class Turns(Crowd):
    """A race in which everybody moves when it likes."""

    is_lock_step = False


@contextlib.contextmanager
def playing(count: int, game: type[Race] = Race, **settings: Any) -> Iterator[Table]:
    with table(count, game, players=count, **settings) as (players, _):
        yield players
        assert game in (Moody, Exiting) or players.server.errors == []


def test_a_step_is_taken_when_all_have_sent_theirs() -> None:
    with playing(3, length=2) as players:
        assert [step.step_type for step in players.step(RUN, RUN, RUN)] == [FIRST] * 3
        for lane, mid in enumerate(players.step(RUN, STAY, RUN)):
            assert mid.step_type is MID
            assert mid.observation["lane"] == lane
            np.testing.assert_array_equal(mid.observation["positions"], [1, 0, 1])
        last = players.step(RUN, RUN, RUN)
        assert [step.step_type for step in last] == [LAST] * 3
        assert [step.reward for step in last] == [0.5, -1.0, 0.5]
        assert [step.discount for step in last] == [0.0] * 3
        assert [step.step_type for step in players.step(STAY, STAY, STAY)] == [FIRST] * 3


def test_who_is_missing_is_told_after_a_while() -> None:
    with (
        serve(Race, step_timeout=patience(0.3)) as impatient,
        connect(impatient.address) as first,
        first.reopen() as second,
    ):
        world = create_world(first)
        here = join_world(first, world)
        with pytest.raises(DmEnvRpcError, match=r"DEADLINE_EXC.*1 more player\(s\) must join"):
            here.step(STAY)
        there = join_world(second, world)
        with pytest.raises(DmEnvRpcError, match="player 1 has not stepped"):
            here.step(STAY)
        # Nothing is out of step.
        future = here.step_async(STAY)
        assert there.step(STAY).first()
        assert future.result(20).first()


def test_there_are_as_many_places_as_there_are() -> None:
    with playing(2) as players, players.spectator.reopen() as late:
        with pytest.raises(DmEnvRpcError, match=r"FAILED_PRECONDITION.*free lanes: none"):
            join_world(late, players.world)
        players.envs[0].close()
        with pytest.raises(DmEnvRpcError, match="lane 1 is not free"):
            join_world(late, players.world, {"lane": 1})
        with pytest.raises(DmEnvRpcError, match="unknown join setting 'name'"):
            join_world(late, players.world, {"name": "x"})
        with join_world(late, players.world, {"lane": 0}) as env:
            future = env.step_async(STAY)
            assert players.envs[1].step(STAY).observation["lane"] == 1
            assert future.result(20).observation["lane"] == 0


@pytest.mark.parametrize("vanish", [True, False])
def test_with_too_few_left_the_sequence_is_interrupted(vanish: bool) -> None:
    with playing(2) as players:
        players.step(STAY, STAY)
        waiting = players.threads.submit(players.envs[0].step, RUN)
        assert settles(lambda: players.waiting_for() == "player 1 has not stepped")
        if vanish:
            players.connections[1]._poison(ConnectionLostError("cable cut"))
        else:
            players.envs[1].close()
        interrupted = waiting.result(20)
        assert (interrupted.step_type, interrupted.discount) == (LAST, 1.0)


def test_the_others_go_on_without_one_that_leaves() -> None:
    with playing(3, Crowd, length=9) as players:
        players.step(STAY, STAY, STAY)
        waiting = [players.threads.submit(env.step, RUN) for env in players.envs[:2]]
        assert settles(lambda: players.waiting_for() == "player 2 has not stepped")
        assert not any(each.done() for each in waiting)
        players.envs[2].close()
        for each in waiting:
            timestep = each.result(20)
            assert timestep.mid()
            np.testing.assert_array_equal(timestep.observation["positions"], [1, 1, -1])


def test_one_that_comes_late_begins_with_first() -> None:
    with table(1, Crowd, players=2, length=9) as (players, (here,)):
        assert here.step(STAY).first()
        assert here.step(RUN).mid()
        future = players.join().step_async(RUN)
        timestep = here.step(RUN)
        assert timestep.mid()
        np.testing.assert_array_equal(timestep.observation["positions"], [2, -1])
        assert future.result(20).first()


def test_a_reset_of_ones_own_does_not_touch_the_others() -> None:
    with playing(2, length=9) as players:
        players.step(STAY, STAY)
        future = players.threads.submit(players.envs[0].reset)
        assert players.envs[1].step(RUN).mid()
        assert future.result(20).first()
        assert [step.step_type for step in players.step(RUN, RUN)] == [MID, MID]
        with pytest.raises(DmEnvRpcError, match="unknown reset settings 'x'"):
            players.envs[0].reset({"x": 1})


def test_out_of_lock_step_nobody_waits() -> None:
    with playing(2, Turns, length=2) as players:
        left, right = players.envs
        assert left.step(RUN).first()
        np.testing.assert_array_equal(left.step(RUN).observation["positions"], [1, 0])
        assert right.step(RUN).first()
        assert left.step(RUN).last()
        # The other hears with its next step, and then begins anew.
        last = right.step(RUN)
        assert (last.step_type, last.reward) == (LAST, -1.0)
        assert right.step(RUN).first()
        assert left.step(RUN).first()


class Strict(Race):
    """A race in which everybody has to say what it does."""

    default_actions: Mapping[str, Any] = MappingProxyType({})


def test_a_bad_action_is_refused_before_the_others_are_waited_for() -> None:
    with playing(2, Strict) as players:
        players.step(STAY, STAY)
        with time_limit(5), pytest.raises(DmEnvRpcError, match="missing action 'move'"):
            players.envs[0].step({})


def test_who_leaves_its_action_out_stays() -> None:
    with playing(2) as players:
        players.step({}, {})
        for step in players.step({}, RUN):
            np.testing.assert_array_equal(step.observation["positions"], [0, 1])


class Moody(Crowd):
    """Fails as its action says."""

    def step(self, actions: Any) -> None:
        move = max(int(action["move"]) for action in actions.values())
        if move:
            raise ValueError("no running here")
        raise ZeroDivisionError


def test_a_game_that_fails_fails_for_all_who_step(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    with playing(2, Moody) as players:
        assert [step.step_type for step in players.step(STAY, STAY)] == [FIRST] * 2
        for action, text in ((RUN, "INVALID_ARGUMENT: no running"), (STAY, "ZeroDivisionError")):
            futures = [players.threads.submit(env.step, action) for env in players.envs]
            for each in futures:
                with pytest.raises(DmEnvRpcError, match=text):
                    each.result(20)


class Exiting(Crowd):
    """Ends its program in its first step, as it believes, and counts its steps."""

    taken: ClassVar[list[Mapping[Hashable, Any]]] = []

    def step(self, actions: Mapping[Hashable, Any]) -> None:
        self.taken.append(dict(actions))
        if len(self.taken) == 1:
            raise SystemExit
        super().step(actions)


def test_a_game_that_exits_fails_for_all_who_step_and_takes_no_action_twice() -> None:
    Exiting.taken.clear()
    with playing(3, Exiting, length=9) as players:
        players.step(STAY, STAY, STAY)
        asked = [players.threads.submit(env.step, RUN) for env in players.envs]
        failures = [each.exception(30) for each in asked]
        assert [type(each) for each in failures].count(ConnectionLostError) == 1
        left = [
            env
            for env, failure in zip(players.envs, failures, strict=True)
            if isinstance(failure, DmEnvRpcError)
        ]
        assert len(left) == 2
        assert settles(lambda: players.server.agent_count == 2)
        again = [players.threads.submit(env.step, STAY) for env in left]
        assert [each.result(30).step_type for each in again] == [MID] * 2
        assert [len(actions) for actions in Exiting.taken] == [3, 2]


def test_a_step_that_waits_ends_when_its_world_is_closed() -> None:
    world = SharedWorld(Race(), step_timeout=None)
    agent, _ = world.join({}), world.join({})
    outcome = concurrent.futures.Future[Exception]()

    def step() -> None:
        try:
            agent.step(None, ())
        except Exception as error:
            outcome.set_result(error)

    # Not of an executor, which would wait for it if it never ended.
    threading.Thread(target=step, daemon=True).start()
    assert settles(lambda: bool(world.waiting_for()))
    world.close()
    error = outcome.result(patience(10))
    assert isinstance(error, RequestError)
    assert str(error) == "the world was closed"


# ResetWorld.


def test_reset_world_waits_until_all_others_have_heard() -> None:
    with playing(3, length=9) as players:
        players.step(RUN, RUN, RUN)
        players.step(RUN, RUN, RUN)
        reset = players.threads.submit(reset_world, players.connections[0], players.world)
        time.sleep(0.05)  # Nobody can see that it has begun.
        heard = players.envs[1].step(RUN)
        assert (heard.step_type, heard.discount) == (LAST, 1.0)
        np.testing.assert_array_equal(heard.observation["positions"], [1, 1, 1])
        assert not reset.done()
        assert players.envs[2].step(RUN).last()
        reset.result(20)
        for first in players.step(RUN, RUN, RUN):
            assert first.step_type is FIRST
            np.testing.assert_array_equal(first.observation["positions"], [0, 0, 0])


def test_two_resets_at_once_do_not_wait_for_each_other() -> None:
    with playing(2) as players:
        players.step(STAY, STAY)
        worlds = [players.world] * 2
        list(players.threads.map(reset_world, players.connections, worlds, timeout=20))
        assert [step.step_type for step in players.step(STAY, STAY)] == [FIRST] * 2


def test_settings_of_a_reset_apply_from_the_next_sequence_on() -> None:
    with playing(2, length=5) as players:
        reset_world(players.spectator, players.world, {"length": 1})
        players.step(STAY, STAY)
        assert players.step(RUN, STAY)[1].last()
        with pytest.raises(DmEnvRpcError, match="setting that an existing race accepts is length"):
            reset_world(players.spectator, players.world, {"length": 50})


def follow(
    now: Callable[[], int],
    is_over: threading.Event,
    env: DmEnvAdaptor,
    connection: Connection,
    vanish_at: int | None,
) -> tuple[list[int], int | None]:
    """Steps until it has heard of a reset and seen the next sequence, or vanishes.

    Args:
      now: counts, in one order for all threads.
      is_over: set when the reset is: who was not in a sequence then never hears of it.

    Returns:
      When the steps were sent that told of it, and when the next sequence was received.
    """
    heard: list[int] = []
    for step in range(10_000):
        if step == vanish_at or (is_over.is_set() and not heard):
            break
        sent = now()
        timestep = env.step(STAY)
        received = now()
        if timestep.last():
            heard.append(sent)
        elif heard:
            # Out of the way of those who have yet to begin.
            connection._poison(ConnectionLostError("done"))
            return heard, received
    connection._poison(ConnectionLostError("vanished"))
    return heard, None


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    is_spectator=st.booleans(),
    after=st.integers(0, 20),
    vanish_at=st.lists(st.one_of(st.none(), st.integers(0, 30)), min_size=4, max_size=4),
)
def test_reset_world_with_four_agents_some_of_which_vanish(
    is_spectator: bool, after: int, vanish_at: list[int | None]
) -> None:
    with playing(4, Crowd, length=1_000) as players:
        now = itertools.count().__next__
        is_over = threading.Event()
        agents = list(zip(players.envs, players.connections, vanish_at, strict=True))
        others = agents if is_spectator else agents[1:]
        members = [players.threads.submit(follow, now, is_over, *agent) for agent in others]
        caller = players.spectator if is_spectator else players.connections[0]
        if not is_spectator:
            for _ in range(after):
                assert not players.envs[0].step(STAY).last()
        else:
            time.sleep(after / 2_000)  # Any time, as hypothesis says.
        reset_world(caller, players.world)
        answered = now()
        if not is_spectator:
            first = players.envs[0].step(STAY)
            assert first.step_type is FIRST, "the caller is not told by a step"
            players.envs[0].close()
        is_over.set()
        outcomes = [member.result(30) for member in members]
        told = [sent for heard, _ in outcomes for sent in heard]
        for (heard, began), (_, _, vanishes_at) in zip(outcomes, others, strict=True):
            if vanishes_at is None and heard:
                # Told once, by a step that it had sent before the caller had its answer;
                # and the next sequence began after everybody had been told.
                assert len(heard) == 1
                assert heard[0] < answered
                assert began is not None
                assert began > max(told)
