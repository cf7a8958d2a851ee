"""DmEnvAdaptor: a remote environment is a dm_env.Environment."""

from __future__ import annotations

import asyncio
import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import dm_env
import numpy as np
import pytest
import tree
from dm_env import specs
from google.rpc import code_pb2

from dm_env_rpc_client import (
    AutoObservations,
    ConnectionClosedError,
    DmEnvAdaptor,
    DmEnvRpcError,
    SpecError,
    connect,
    create_and_join_world,
    join_world,
    make,
    make_async,
    pack_tensor,
)
from dm_env_rpc_client.protocol import timesteps
from dm_env_rpc_client.server import Catch, Server, serve
from tests.environment import one_world
from tests.support.environments import Echo, Robot
from tests.support.serving import serving
from tests.travelling.environments.of_dm_env import Timed

TRANSPORTS = ["http2"]

FIRST, MID, LAST = dm_env.StepType


robot_server = serving(Robot, scope="function")


def action(**changes: Any) -> dict[str, Any]:
    arm = {"torque": np.array([0.1, 0.2, 0.3], np.float32), "grip": True}
    return {"arm": arm, "mode": 2, "speech": "hi", **changes}


def test_a_later_step_does_not_touch_earlier_observations(robot_server: Server) -> None:
    with make(robot_server.address) as env:
        first = env.reset().observation["camera"]["rgb"]
        kept = first.copy()
        second = env.step(action()).observation["camera"]["rgb"]
        second[...] = 0
        np.testing.assert_array_equal(first, kept)


def test_flat_names_are_taken_and_given_when_asked_for(robot_server: Server) -> None:
    flat = {"arm.torque": [0, 0, 0], "arm.grip": False, "mode": 0, "speech": ""}
    with make(robot_server.address, nested_tensors=False) as env:
        env.reset()
        assert "camera.rgb" in env.step(flat).observation
        assert set(env.action_spec()) == set(flat)
    with make(robot_server.address) as env:
        env.reset()
        assert env.step(flat).mid()
        with pytest.raises(SpecError, match="given twice"):
            env.step({**flat, "arm": {"grip": True}})


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        (["heard"], {"heard"}),
        (["camera.*"], {"camera.rgb", "camera.depth"}),
        (["joints.?", "camera.rgb"], {"joints.0", "joints.1", "joints.2", "camera.rgb"}),
        (["reward", "heard"], {"reward", "heard"}),
        ([], set()),
        (AutoObservations.REQUEST_REWARD, {"reward"}),
        (AutoObservations.REQUEST_ALL_OBSERVATIONS, {"reward"}),
        (None, set()),
    ],
)
def test_observations_are_requested_by_name_pattern_or_kind(
    robot_server: Server, requested: Any, expected: set[str]
) -> None:
    regular = {"camera.rgb", "camera.depth", "joints.0", "joints.1", "joints.2", "heard"}
    if requested is None or isinstance(requested, AutoObservations):
        expected = expected | regular
    with make(robot_server.address, requested_observations=requested, nested_tensors=False) as env:
        assert set(env.observation_spec()) == expected
        assert set(env.reset().observation) == expected
        timestep = env.step({"arm.torque": [1, 0, 0], "arm.grip": 1, "mode": 0, "speech": ""})
        assert set(timestep.observation) == expected
        assert timestep.reward == 1.0


@pytest.mark.parametrize("requested", [["hears"], ["camera.*", "sound.*"], "heard"])
def test_an_observation_that_does_not_exist_is_refused_and_the_world_left(
    robot_server: Server, requested: Any
) -> None:
    with pytest.raises(SpecError, match="observation"):
        make(robot_server.address, requested_observations=requested)
    assert (robot_server.agent_count, robot_server.world_count) == (0, 0)


def test_a_step_without_its_actions_is_the_servers_to_refuse(robot_server: Server) -> None:
    with make(robot_server.address) as env:
        env.reset()
        with pytest.raises(DmEnvRpcError, match=r"missing action 'mode'") as caught:
            env.step({"arm": {"torque": [0, 0, 0], "grip": False}, "speech": ""})
        assert caught.value.code == code_pb2.INVALID_ARGUMENT
        assert env.step(action()).mid()


def test_catch_plays_with_sparse_actions(catch_server: Server) -> None:
    def paddle(timestep: dm_env.TimeStep) -> int:
        return int(np.argmax(timestep.observation["board"][-1]))

    with make(catch_server.address) as env:
        columns = [paddle(env.reset())]
        columns += [paddle(env.step(action)) for action in ({}, {"paddle": 2}, {}, {"paddle": 0})]
        assert columns == [2, 2, 3, 3, 2]
        unrolled = env.unroll([{}] * 30)
        assert np.count_nonzero(unrolled.last()) == 3
    # What the operator says goes before what the environment says.
    with serve(Catch, default_actions={"paddle": 0}) as server, make(server.address) as env:
        assert [paddle(env.reset()), paddle(env.step({}))] == [2, 1]


def test_steps_that_are_not_waited_for_arrive_in_order(catch_server: Server) -> None:
    with make(catch_server.address, {"rows": 4, "seed": 1}) as env:
        local = Catch(4, seed=1)
        futures = [env.submit_step({"paddle": 1}) for _ in range(50)]
        for step, future in enumerate(futures):
            expected = local.step({"paddle": 1})
            timestep = future.result(10)
            assert timestep.step_type is expected.step_type, step
            assert timestep.reward == expected.reward
            np.testing.assert_array_equal(
                timestep.observation["board"], expected.observation["board"]
            )


def test_a_reset_begins_a_sequence_whatever_is_in_flight(catch_server: Server) -> None:
    with make(catch_server.address, {"rows": 9}) as env:
        for in_flight in range(1, 25):
            futures = [env.submit_step({"paddle": 1}) for _ in range(in_flight)]
            assert env.reset().step_type is FIRST
            assert env.step({"paddle": 1}).step_type is MID
            assert all(future.done() for future in futures)


def arm() -> dm_env.Environment:
    """One array of actions and one of observations; three rewards; discounts of 0.5."""
    reward = np.arange(3, dtype=np.int32)
    return Timed(
        0,
        [(FIRST, None, None), (MID, reward, 0.5), (MID, 2 * reward, 0.5), (LAST, reward, 0.5)],
        specs.Array((3,), np.float64),
        lambda env: np.zeros(3) if env.steps == 0 else env.action,
        specs.BoundedArray((3,), np.float64, -5, 5),
        specs.Array((3,), np.int32),
        specs.BoundedArray((), np.float32, 0, 1),
    )


ROBOT_ACTIONS = [action(speech="hello" if step % 5 else "hi") for step in range(60)]


@pytest.mark.parametrize(
    ("environment", "actions", "options"),
    [
        (lambda: Catch(seed=1), [{"paddle": 1}] * 60, {}),
        (lambda: Catch(seed=1), [{"paddle": 1}] * 60, {"requested_observations": ["board"]}),
        (
            lambda: Catch(seed=1),
            [{"paddle": 1}] * 60,
            {"requested_observations": AutoObservations(3)},
        ),
        (Robot, ROBOT_ACTIONS, {}),
        (Robot, ROBOT_ACTIONS, {"nested_tensors": False}),
        (Robot, ROBOT_ACTIONS, {"requested_observations": ["camera.*", "heard"]}),
        (arm, [np.full(3, step / 4) for step in range(20)], {"unwrap_single": True}),
        (Echo, [{"value": 10**step} for step in range(18)], {}),
        (Echo, {"value": 10 ** np.arange(18)}, {}),
    ],
)
def test_unroll_equals_the_stacked_steps_of_a_rollout(
    environment: Any, actions: Any, options: dict[str, Any]
) -> None:
    is_stacked = isinstance(actions, dict)
    each = [{"value": value} for value in actions["value"]] if is_stacked else actions
    with (
        serve(environment) as server,
        make(server.address, **options) as env,
        make(server.address, **options) as other,
    ):
        unrolled = env.unroll(actions if is_stacked else iter(actions))
        expected = timesteps.stack(list(other.rollout(list(each))))
    tree.assert_same_structure(unrolled, expected)
    for found, wanted in zip(tree.flatten(unrolled), tree.flatten(expected), strict=True):
        assert found.dtype == wanted.dtype
        assert found.flags.writeable
        np.testing.assert_array_equal(found, wanted)


def test_an_endless_rollout_takes_actions_as_it_goes(catch_server: Server) -> None:
    taken = 0

    def actions() -> Iterator[dict[str, int]]:
        nonlocal taken
        while True:
            taken += 1
            yield {"paddle": 2}

    with (
        make(catch_server.address, {"seed": 1}) as env,
        make(catch_server.address, {"seed": 1}) as other,
    ):
        for number, step in enumerate(env.rollout(actions(), ahead=8)):
            expected = other.step({"paddle": 2})
            assert (step.step_type, step.reward) == (expected.step_type, expected.reward)
            np.testing.assert_array_equal(step.observation["board"], expected.observation["board"])
            assert taken <= number + 8
            if number == 40:
                break
        # Up to 8 more were taken; what comes now follows them, in order.
        assert env.reset().first()
        assert env.step({"paddle": 1}).mid()


def test_large_answers_are_not_asked_for_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dm_env_rpc_client.environment.base_adaptor.AHEAD_BYTES", 1_000)
    with serve(Catch) as server, make(server.address, {"rows": 10, "columns": 10}) as env:
        rollout = env.rollout([{"paddle": 1}] * 20)
        in_flight = [env.connection.in_flight for _ in rollout]
    assert len(in_flight) == 20
    assert max(in_flight) <= 1_000 // 400


@pytest.mark.parametrize(
    ("actions", "text"),
    [
        ([], "cannot stack zero TimeSteps"),
        ({}, "number of steps"),
        ({"paddle": []}, "cannot stack zero TimeSteps"),
    ],
)
def test_an_unroll_of_nothing_is_refused(catch_server: Server, actions: Any, text: str) -> None:
    with make(catch_server.address) as env, pytest.raises(SpecError, match=text):
        env.unroll(actions)


def test_actions_of_different_lengths_are_refused(robot_server: Server) -> None:
    with make(robot_server.address) as env, pytest.raises(SpecError, match="same number"):
        env.unroll({"mode": [1, 2], "speech": ["a"]})


def test_an_error_in_an_unroll_leaves_the_environment_in_step() -> None:
    with serve(Echo) as server, make(server.address) as env:
        env.reset()
        with pytest.raises(DmEnvRpcError, match="missing action"):
            env.unroll([{"value": 1}, {}, {"value": 3}])
        assert env.step({"value": 4}).observation["value"] == 4


def test_rewards_and_discounts_of_ones_own(catch_server: Server) -> None:
    class Halved(DmEnvAdaptor):
        def reward(self, state: int, step_type: dm_env.StepType, observations: Any) -> Any:
            reward = super().reward(state, step_type, observations)
            return None if reward is None else reward / 2 + float(observations["board"].sum())

        def discount(self, state: int, step_type: dm_env.StepType, observations: Any) -> Any:
            return None if step_type is FIRST else 0.25 * state

    with make(catch_server.address, {"rows": 2, "columns": 1}, adaptor_class=Halved) as env:
        assert env.reset().reward is None
        last = env.step({"paddle": 1})
        assert (last.reward, last.discount) == (1.5, 0.25 * one_world.TERMINATED)
        env.reward = lambda **_: 42.0  # type: ignore[method-assign]
        env.reset()
        assert env.step({"paddle": 1}).reward == 42.0


def test_extensions_are_attributes_until_the_environment_is_closed(
    catch_server: Server,
) -> None:
    extension = object()
    env: Any = make(catch_server.address, extensions={"properties": extension})
    assert env.properties is extension
    env.close()
    assert env.properties is None
    with pytest.raises(SpecError, match="extension name 'step' is already the name"):
        make(catch_server.address, extensions={"step": extension})
    assert catch_server.agent_count == 0


def test_a_closed_environment_says_so(catch_server: Server) -> None:
    env = make(catch_server.address)
    env.close()
    env.close()
    calls: list[Callable[[], Any]] = [env.reset, lambda: env.step({}), lambda: env.unroll([{}])]
    for call in calls:
        with pytest.raises(ConnectionClosedError, match="closed"):
            call()
    assert "closed" in repr(env)
    assert (catch_server.agent_count, catch_server.world_count) == (0, 0)


def test_close_leaves_but_does_not_destroy_what_make_did_not_create(
    catch_server: Server,
) -> None:
    with connect(catch_server.address) as connection:
        env, world_name = create_and_join_world(connection, {}, {})
        env.close()
        assert (catch_server.agent_count, catch_server.world_count) == (0, 1)
        with join_world(connection, world_name, {}) as again:
            assert again.reset().first()


def test_what_dir_lists_is_for_users(catch_server: Server) -> None:
    expected = """
        action_spec camera close connection discount discount_spec interruption observation_spec
        on_close on_restart reset restarts reward reward_spec rollout server state step step_async
        submit_step unroll world_name
    """
    with make(catch_server.address, extensions={"camera": object()}) as env:
        assert [name for name in dir(env) if not name.startswith("_")] == expected.split()


def test_on_close_calls_back_in_reverse_and_logs_failures(
    catch_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def fail() -> None:
        raise ZeroDivisionError

    env = make(catch_server.address)
    env.on_close(lambda: calls.append(1))
    env.on_close(fail)
    env.on_close(lambda: calls.append(2))
    env.close()
    assert calls == [2, 1]
    assert "clean up" in caplog.text


@pytest.mark.parametrize(
    "settings",
    [
        {"joints": 2, "camera": {"height": 7}},
        {"joints": 2, "camera.height": 7},
        {"joints": np.int8(2), "camera": {"height": pack_tensor(7, np.int32)}},
    ],
)
def test_settings_are_nested_or_flat_values_or_tensors(settings: dict[str, Any]) -> None:
    with serve(Robot) as server, make(server.address, settings) as env:
        assert env.action_spec()["arm"]["torque"].shape == (2,)
        assert env.observation_spec()["camera"]["rgb"].shape == (7, 5, 3)


def test_an_adaptor_class_may_take_keywords_of_its_own(catch_server: Server) -> None:
    class Repeating(DmEnvAdaptor):
        def __init__(self, *args: Any, repeats: int = 1, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self.repeats = repeats

    # For type checkers these are keywords of nobody; a dictionary says that they are meant.
    own: dict[str, Any] = {"repeats": 3}
    with make(catch_server.address, adaptor_class=Repeating, **own) as env:
        assert isinstance(env, Repeating)
        assert env.repeats == 3


@pytest.mark.parametrize("send_tracebacks", [True, False])
def test_the_traceback_of_an_environment_is_a_note_of_the_error(send_tracebacks: bool) -> None:
    class Broken(Robot):
        def reset(self) -> Any:
            raise ZeroDivisionError("no motor")

    with (
        serve(Broken, send_tracebacks=send_tracebacks) as server,
        make(server.address) as env,
        pytest.raises(DmEnvRpcError, match="no motor") as caught,
    ):
        env.reset()
    printed = "".join(traceback.format_exception(caught.value))
    assert ('raise ZeroDivisionError("no motor")' in printed) is send_tracebacks
    assert ("On the server:" in printed) is send_tracebacks
    copied = pickle.loads(pickle.dumps(caught.value))
    assert "".join(traceback.format_exception_only(copied)) in printed


async def test_steps_that_are_gathered_are_taken_in_order(catch_server: Server) -> None:
    async with await make_async(catch_server.address, {"rows": 3}) as env:
        steps = await asyncio.gather(*(env.step({"paddle": 1}) for _ in range(7)))
        assert [step.step_type for step in steps] == [FIRST, MID, LAST, FIRST, MID, LAST, FIRST]
        pending = [asyncio.create_task(env.step({"paddle": 1})) for _ in range(4)]
        await asyncio.sleep(0)
        assert (await env.reset()).first()
        await asyncio.gather(*pending)


async def test_the_bodys_own_error_survives_a_close_that_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise OSError("cannot clean up")

    async def body() -> None:
        async with await make_async(server.address) as env:
            env.on_close(fail)
            server.stop(0)
            raise ZeroDivisionError

    server = serve(Catch)
    with pytest.raises(ZeroDivisionError):
        await body()
    assert "clean up" in caplog.text
