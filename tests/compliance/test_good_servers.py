"""The suite has nothing to say against servers that are right, batches among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs
from google.protobuf import any_pb2

from dm_env_rpc_client.compliance import CHECKS, Options, Outcome, Result, run
from dm_env_rpc_client.server import Catch, Race, serve
from dm_env_rpc_client.tensors.specs import VariableArray, VariableBoundedArray
from tests.adaptors.gymnasium.known import cart_pole, cart_poles
from tests.compliance import playground
from tests.compliance.limited_servers import Minimal
from tests.reliability.recording import Seen
from tests.support.stopwatch import Stopwatch, patience


class Arm(dm_env.Environment):
    """Nested, bounded for each element, of variable length; five steps long."""

    def __init__(self, joints: int = 3) -> None:
        lowest = np.arange(2.0 * joints).reshape(2, joints)
        self._torque = specs.BoundedArray((2, joints), np.float32, lowest, lowest + 0.5, "torque")
        self._steps = 0

    def action_spec(self) -> dict[str, Any]:
        return {
            "arm": {"torque": self._torque, "grip": specs.Array((), bool, "grip")},
            "path": VariableBoundedArray((-1, 2), np.int16, -5, 5, "path"),
            "say": specs.StringArray((), name="say"),
        }

    def observation_spec(self) -> dict[str, Any]:
        return {
            "arm": {"torque": self._torque},
            "path": VariableArray((-1, 2), np.int32, "path"),
            "heard": specs.StringArray((2,), name="heard"),
            "steps": specs.DiscreteArray(6, name="steps"),
        }

    def reset(self) -> dm_env.TimeStep:
        self._steps = 0
        return dm_env.restart(self._observe(self._torque.minimum, np.zeros((1, 2)), ""))

    def step(self, action: dict[str, Any]) -> dm_env.TimeStep:
        self._steps += 1
        observation = self._observe(action["arm"]["torque"], action["path"], action["say"])
        if self._steps == 5:
            return dm_env.truncation(1.0, observation)
        return dm_env.transition(0.0, observation)

    def _observe(self, torque: Any, path: Any, said: Any) -> dict[str, Any]:
        return {
            "arm": {"torque": np.asarray(torque, np.float32)},
            "path": np.asarray(path, np.int32),
            "heard": np.array([said, "x"], object),
            "steps": np.int64(self._steps),
        }


pytestmark = pytest.mark.row(30)

QUICK: dict[str, Any] = {"timeout": 60.0, "quiet_seconds": 0.05}


record: list[Seen] = []


@pytest.fixture(autouse=True)
def recorded(seen: Seen) -> None:
    """Has `count` say what it counts."""
    record[:] = [seen]


def count(results: Iterable[Result]) -> None:
    """Says how many checks there were on a good server, and how many false alarms."""
    found = list(results)
    record[0](
        runs_on_good_servers=1,
        checks=sum(result.outcome is not Outcome.SKIPPED for result in found),
        false_alarms=sum(result.is_finding for result in found),
    )


def outcomes(address: str, options: Options, *about: str) -> dict[str, Result]:
    """Runs all checks, or those with one of `about` in their names; returns those that passed."""
    checks = [check for check in CHECKS if not about or any(each in check.name for each in about)]
    results = {result.name: result for result in run(address, options, checks)}
    count(results.values())
    assert list(results) == [check.name for check in checks]
    assert [str(result) for result in results.values() if result.is_finding] == []
    for result in results.values():
        assert bool(result.reason) == (result.outcome is Outcome.SKIPPED)
    return {name: result for name, result in results.items() if result.outcome is Outcome.PASSED}


def test_our_server_with_catch() -> None:
    options = Options(
        create_settings={"rows": 5},
        invalid_create_settings={"columns": -1, "colour": "red"},
        invalid_join_settings={"name": "x"},
        reset_settings={"rows": 6},
        invalid_reset_settings={"rows": 0},
        several_worlds=True,
        several_agents=False,
        **QUICK,
    )
    with serve(Catch) as server:
        passed = outcomes(server.address, options)
        assert server.world_count == server.agent_count == 0
    assert len(passed) >= 60
    assert server.errors == []


@pytest.mark.parametrize("policy", ["random", "constant"])
def test_our_server_with_nested_bounded_and_variable_specs(policy: str) -> None:
    options = Options(policy=policy, reset_settings={"joints": 2}, **QUICK)
    with serve(Arm) as server:
        passed = outcomes(server.address, options, "" if policy == "random" else "s_")
    assert "a_variable_dimension_takes_any_length" in passed
    assert "actions_at_their_bounds_are_taken" in passed
    assert "sequences_end_and_begin_while_steps_are_in_flight" in passed
    assert server.errors == []


class Messaging(Arm):
    """Takes a message, of which the suite cannot know the type."""

    def action_spec(self) -> dict[str, Any]:
        return {**super().action_spec(), "note": specs.Array((), object, "note")}


def test_our_server_where_an_action_is_a_message() -> None:
    with serve(Messaging, default_actions={"note": any_pb2.Any()}) as server:
        passed = outcomes(server.address, Options(**QUICK), "action", "messages")
    assert "messages_of_another_shape_are_refused" in passed


@pytest.mark.parametrize("claims", [None, True])
def test_a_server_on_the_references_modules(claims: bool | None) -> None:
    options = Options(
        invalid_create_settings={"x": 1},
        invalid_join_settings={"x": 1},
        reset_settings={"length": 3},
        invalid_reset_settings={"x": 1},
        several_worlds=claims,
        several_agents=claims,
        **QUICK,
    )
    with playground.serve() as address:
        passed = outcomes(address, options)
    assert "an_agent_resets_the_world_of_another" in passed
    assert "worlds_are_independent" in passed
    assert len(passed) >= 68


def test_a_minimal_server() -> None:
    options = Options(world_name="", several_worlds=False, several_agents=False, **QUICK)
    with playground.serve(Minimal) as address:
        passed = outcomes(address, options)
    assert "states_follow_each_other" in passed
    assert "a_world_for_one_agent_refuses_another" in passed
    assert "a_reset_ends_the_sequence" not in passed


@pytest.mark.parametrize("told", [0, 1])
def test_our_server_with_room_for_one_connection(told: int) -> None:
    options = Options(reset_settings={"rows": 6}, connections=told, **QUICK)
    stopwatch = Stopwatch()
    with serve(Catch, max_connections=1) as server:
        passed = outcomes(server.address, options)
        assert server.world_count == server.agent_count == 0
    assert len(passed) >= 60
    assert "a_joined_connection_cannot_join_another_world" in passed
    assert "worlds_are_independent" not in passed
    assert stopwatch.within(patience(60.0))


def test_a_server_with_room_for_one_world() -> None:
    class OneWorld(playground.Worlds):
        max_agents = 1

        def create(self, settings: Any) -> str:
            if self.worlds:
                raise playground.RequestError("there is a world")
            self.worlds[""] = self.worlds.pop(super().create(settings))
            return ""

    class Session(playground.Session):
        worlds_class = OneWorld

        def on_create_world(self, request: Any) -> Any:
            settings = request.settings
            if not settings:
                raise playground.RequestError("the seed is missing")
            return super().on_create_world(request)

    known: dict[str, Any] = {"create_settings": {"seed": 1}, "required_create_settings": ["seed"]}
    with playground.serve(Session) as address:
        told = outcomes(
            address, Options(several_worlds=False, several_agents=False, **known, **QUICK)
        )
        found_out = outcomes(address, Options(**known, **QUICK), "world")
    assert "a_server_with_one_world_refuses_another" in told
    assert "required_create_settings_are_required" in told
    assert "worlds_are_independent" not in {**told, **found_out}


class Destroying(playground.Worlds):
    """Destroys a world under its agents, whose steps fail from then on."""

    def destroy(self, name: str) -> None:
        for agent in self.find(name).agents:
            agent.world = None
        del self.worlds[name]


class Waiting(playground.Worlds):
    """Destroys a world once its agents have left."""

    def destroy(self, name: str) -> None:
        world = self.find(name)
        self.changed.wait_for(lambda: not world.agents, playground.WAIT_SECONDS)
        self.worlds.pop(name, None)


class Slow(playground.Worlds):
    """Refuses, and is busy for so long that the agent has left when its answer comes."""

    def destroy(self, name: str) -> None:
        try:
            super().destroy(name)
        except playground.RequestError:
            world = self.find(name)
            self.changed.wait_for(lambda: not world.agents, playground.WAIT_SECONDS)
            raise


@pytest.mark.parametrize("worlds", [Destroying, Waiting, Slow])
def test_the_ways_in_which_a_world_with_an_agent_may_be_destroyed(
    worlds: type[playground.Worlds],
) -> None:
    class Session(playground.Session):
        worlds_class = worlds

        def on_destroy_world(self, request: Any) -> Any:
            name = request.world_name
            if self.world is not None and name == self.world_name:
                raise playground.RequestError("joined to it")
            return super().on_destroy_world(request)

    with playground.serve(Session) as address:
        outcomes(address, Options(**QUICK), "destroy")


def test_our_server_with_a_world_that_waits_for_three_agents() -> None:
    options = Options(create_settings={"players": 3}, companions=2, **QUICK)
    with serve(Race) as server:
        passed = outcomes(server.address, options)
    assert len(passed) >= 60
    assert server.errors == []


def test_our_server_resets_the_world_of_two_agents() -> None:
    names = ("an_agent_resets_the_world_of_another", "agents_of_one_world_have_their_own_states")
    checks = [check for check in CHECKS if check.name in names]
    # One agent alone cannot step in this world, which the checks that need it wait for.
    options = Options(several_agents=True, **{**QUICK, "timeout": patience(2.0)})
    with serve(Race) as server:
        results = list(run(server.address, options, checks))
    count(results)
    assert [result.name for result in results] == [check.name for check in checks]
    assert [result.outcome for result in results] == [Outcome.PASSED] * 2


@pytest.mark.parametrize(
    ("factory", "create", "reset"),
    [
        (Catch, {"num_envs": 3, "rows.seed": [1, 2, 3]}, {"rows.seed": [4, 5, 6]}),
        (Catch, {"num_envs": 1}, {"seed": 1}),
        (cart_pole, {"num_envs": 3, "autoreset_mode": "SAME_STEP"}, {"reset_mask": [True] * 3}),
        (cart_poles, {"num_envs": 3}, {"seed": 3}),
    ],
    ids=["dm_env", "one-row", "gymnasium-same-step", "vector"],
)
def test_batches_keep_to_the_protocol(
    factory: Callable[..., Any], create: dict[str, Any], reset: dict[str, Any]
) -> None:
    options = Options(
        create_settings=create,
        invalid_create_settings={"num_envs": 0},
        reset_settings=reset,
        invalid_reset_settings={"reset_mask": [False]},
        several_agents=False,
        timeout=20.0,
        quiet_seconds=0.1,
    )
    with serve(factory) as server:
        passed = outcomes(server.address, options)
    assert len(passed) >= 60
