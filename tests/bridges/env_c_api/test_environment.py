"""EnvCApiEnvironment on the complete library, and how its episodes begin: here and in a child."""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client import dm_env_rpc_pb2
from dm_env_rpc_client.bridges.env_c_api import EnvCApiEnvironment, Event, PropertyAttributes
from dm_env_rpc_client.bridges.env_c_api.environment import event_text
from dm_env_rpc_client.errors import (
    ConnectionClosedError,
    DmEnvRpcClientError,
    LibraryError,
    PropertyError,
    ProtocolError,
    SpecError,
)
from dm_env_rpc_client.tensors.specs import VariableArray, VariableStringArray
from tests.bridges.env_c_api.compiling import compile_library
from tests.bridges.env_c_api.conftest import MakeEnvironment


def facts(spec: Any) -> tuple[Any, ...]:
    return spec.shape, spec.dtype, spec.name, spec.minimum, spec.maximum


def test_actions_are_scalars_by_name(make: MakeEnvironment, version: str, isolated: bool) -> None:
    spec = make(version=version, isolated=isolated).action_spec()
    turn, jump = spec["turn"]["horizontal"], spec["jump"]
    throttle, say = spec["throttle"], spec["say"]
    assert facts(turn) == ((), np.int32, "turn.horizontal", -10, 10)
    assert isinstance(jump, specs.DiscreteArray)
    assert (jump.num_values, jump.dtype) == (2, np.int32)
    assert facts(throttle) == ((), float, "throttle", -1.0, 1.0)
    assert isinstance(say, specs.StringArray)
    assert say.shape == ()


def test_observations_of_every_type(make: MakeEnvironment, isolated: bool) -> None:
    environment = make(version="2.2", isolated=isolated, nested_tensors=False)
    spec = environment.observation_spec()
    assert {name: (s.shape, s.dtype) for name, s in spec.items()} == {
        "camera": ((72, 96, 3), np.uint8),
        "body.position": ((3,), np.float64),
        "message": ((), object),
        "path": ((-1, 2), np.float64),
        "map.values": ((-1,), np.uint8),
        "map.shape": ((2,), np.int32),
        "anything.values": ((-1,), np.float64),
        "anything.shape": ((-1,), np.int32),
        "counters": ((2,), np.int32),
        "ticks": ((1,), np.int64),
    }
    assert isinstance(spec["path"], VariableArray)
    environment.reset()
    for step in (1, 2, 3):
        observation = environment.step({}).observation
        for name, value in observation.items():
            spec[name].validate(value)
        assert observation["message"] == f"step {step} \N{CHECK MARK}"
        assert observation["path"].tolist() == np.arange(2.0 * step).reshape(step, 2).tolist()
        shape = observation["map.shape"]
        assert observation["map.values"].reshape(shape).shape == (step + 1, 2)
        assert observation["anything.shape"].tolist() == [2, 3][: step % 3]
        assert observation["counters"].tolist() == [step, -(2**31)]
        assert observation["ticks"].tolist() == [2**63 - 1 - step]


@pytest.mark.parametrize("pattern", ["anything", "any*", "*"])
def test_a_scalar_that_the_library_does_not_declare(
    make: MakeEnvironment, isolated: bool, pattern: str
) -> None:
    # Each third observation of the library is a scalar.
    environment = make(isolated=isolated, shapes={pattern: ()}, frames_per_step=3)
    spec = environment.observation_spec()["anything"]
    assert type(spec) is specs.Array
    assert (spec.shape, spec.dtype) == ((), np.float64)
    assert "map" in environment.observation_spec(), "others keep what the library declares"
    for timestep in (environment.reset(), environment.step({}), environment.step({})):
        assert timestep.observation["anything"] == 0.5
        spec.validate(timestep.observation["anything"])
    first, second = (environment.step({}).observation["anything"] for _ in range(2))
    assert not np.shares_memory(first, second)


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((), r"'anything' is float64 of shape \(2,\); expected DOUBLES of .* as given in shapes"),
        ((-1,), r"'anything' is float64 of shape \(\); expected DOUBLES of shape \(0,\)"),
        ((3, 3), r"'anything'.*shape \(\); expected .* shape \(3, 3\) .*, as given in shapes"),
    ],
)
def test_a_value_of_another_shape_is_an_error(
    make: MakeEnvironment, isolated: bool, shape: tuple[int, ...], text: str
) -> None:
    environment = make(isolated=isolated, shapes={"anything": shape})
    timesteps = (environment.step({}) for _ in range(3))
    with pytest.raises(ProtocolError, match=text):
        list(timesteps)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"shapes": {"everything": ()}}, "'everything'; known observations: 'camera'"),
        ({"shapes": {"camera": ()}}, r"declares the shape of 'camera' as \(72, 96, 3\)"),
        ({"shapes": {"message": ()}}, "itself declares the shape of 'message'"),
        ({"shapes": {"anything": (0,)}}, r"shape of 'anything' is \(0,\); expected a sequence"),
        ({"shapes": {"anything": (-2,)}}, "positive integers"),
        ({"shapes": {"anything": 3}}, "positive integers"),
        ({"shapes": {"anything": "ab"}}, "positive integers"),
        ({"events_observation": "camera"}, "'camera', which is already the name of an"),
        ({"events_observation": "body"}, "conflict: "),
        (
            {"observations": "camera"},
            "must be a list of names, or None for all, got 'camera'",
        ),
        (
            {"observations": ["radar"]},
            "there is no observation 'radar'; known observations: 'camera'",
        ),
        ({"settings": {"width\0": "1"}}, "null character"),
        ({"frames_per_step": 0}, "frames_per_step must be an integer from 1 to 2147483647, got 0"),
        ({"start_attempts": 0}, "start_attempts must be .*, got 0"),
        ({"episode_seeds": 2**31}, "the first seed must be .*, got 2147483648"),
        ({"episode_seeds": 1.5}, r"episode_seeds is 1\.5; expected an integer"),
        ({"episode_seeds": "12"}, "episode_seeds is '12'"),
        ({"first_episode": 0.5}, r"first_episode must be .*, got 0\.5"),
    ],
)
def test_arguments_that_cannot_be(
    make: MakeEnvironment, kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        make(**kwargs)


def test_arrays_belong_to_the_caller(make: MakeEnvironment, isolated: bool) -> None:
    environment = make(isolated=isolated, episode_seeds=0)
    first = environment.reset().observation["camera"]
    second = environment.step({}).observation["camera"]
    assert not np.shares_memory(first, second)
    second[:] = 200
    third = environment.step({}).observation["camera"]
    assert (first[0, 0, 0], second[0, 0, 0], third[0, 0, 0]) == (0, 200, 2)
    assert first.flags.writeable


@pytest.mark.parametrize(("end", "discount"), [("terminated", 0.0), ("interrupted", 1.0)])
def test_the_end_of_an_episode(
    make: MakeEnvironment, isolated: bool, end: str, discount: float
) -> None:
    environment = make(isolated=isolated, settings={"length": 2, "end": end})
    assert environment.reset().first()
    before = environment.step({"jump": 1})
    assert (before.step_type, before.reward, before.discount) == (dm_env.StepType.MID, 10.0, 1.0)
    last = environment.step({})
    assert (last.step_type, last.reward, last.discount) == (dm_env.StepType.LAST, 10.0, discount)
    assert environment.events == ()
    # Nothing may be read then, so the observations are those of the step before.
    assert last.observation["message"] == before.observation["message"]
    np.testing.assert_array_equal(last.observation["camera"], before.observation["camera"])
    assert not np.shares_memory(last.observation["camera"], before.observation["camera"])
    assert environment.step({}).first()
    assert environment.read_property("violations") == "0"


def test_the_status_error_is_an_exception(make: MakeEnvironment, isolated: bool) -> None:
    environment = make(isolated=isolated, settings={"length": 1, "end": "error"})
    environment.reset()
    with pytest.raises(LibraryError, match=r"advance failed .*: the ground gave way") as failure:
        environment.step({})
    assert (failure.value.function, failure.value.code) == ("advance", 2)
    assert failure.value.message == "the ground gave way"
    with pytest.raises(DmEnvRpcClientError, match="ended in an error; call reset") as later:
        environment.step({})
    assert later.value.__cause__ is failure.value
    assert environment.reset().first()


def test_actions_are_sticky_until_the_episode_ends(make: MakeEnvironment, isolated: bool) -> None:
    environment = make(isolated=isolated, settings={"length": 4})
    environment.reset()
    assert environment.step({"turn": {"horizontal": 3}, "say": "abc"}).reward == 6.0
    assert environment.step({"turn.horizontal": -2}).reward == 1.0
    assert environment.step({"throttle": 0.5, "jump": np.int8(1)}).reward == 11.25
    environment.step({})
    environment.step({})
    assert environment.step({}).reward == 0.0


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ({"fly": 1}, "there is no action 'fly'; known actions: 'turn.horizontal', 'jump'"),
        ({"jump": 2}, "action 'jump' is 2; expected a number from 0 to 1"),
        ({"jump": 0.5}, "action 'jump': the value is 0.5, which is not an integer; expected int32"),
        ({"jump": 2**40}, "action 'jump' is 1099511627776; expected a number from 0 to 1"),
        ({"jump": [1]}, r"action 'jump' has shape \[1\]; expected a scalar"),
        ({"jump": "high"}, "action 'jump': expected int32, got strings"),
        ({"throttle": float("nan")}, "action 'throttle' is nan; expected a number from -1.0"),
        ({"throttle": float("inf")}, "action 'throttle' is inf"),
        ({"throttle": np.float32(1.5)}, "action 'throttle' is 1.5"),
        ({"say": 3}, "action 'say': expected strings or messages, got int64"),
        ({"say": "a\0b"}, r"action 'say': 'a\\x00b' contains a null character"),
        ({"say": "\ud800"}, r"action 'say': '\\ud800' cannot be encoded as UTF-8"),
        ({"say": np.array(["a"])}, r"action 'say' has shape \[1\]"),
        ({"say": dm_env_rpc_pb2.Tensor()}, "action 'say': expected a string, got Tensor"),
        ({"say": None}, "action 'say': cannot be packed"),
        ([0, 0], "an action must be a mapping of names to values, got list"),
    ],
)
def test_actions_that_cannot_be_change_nothing(
    make: MakeEnvironment, action: Any, message: str
) -> None:
    environment = make()
    environment.reset()
    environment.step({"jump": 1})
    with pytest.raises(SpecError, match=message):
        environment.step(action)
    step = environment.step({})
    assert (step.reward, step.observation["message"]) == (10.0, "step 2 \N{CHECK MARK}")


@pytest.mark.parametrize(
    "jump", [1, True, np.int32(1), np.array(1), np.int64(1), np.uint8(1), 1.0, np.float32(1)]
)
def test_what_an_int32_holds_exactly_is_taken(make: MakeEnvironment, jump: Any) -> None:
    environment = make()
    environment.reset()
    assert environment.step({"jump": jump, "say": np.array("ab", object)}).reward == 12.0


def test_events_after_each_step(make: MakeEnvironment, isolated: bool) -> None:
    environment = make(isolated=isolated)
    environment.reset()
    assert not environment.events
    environment.step({})
    assert list(environment.events) == [Event(0, "tick", ())]
    environment.step({})
    environment.step({})
    tick, bump = environment.events
    assert (tick.name, bump.id, bump.name) == ("tick", 1, "bump")
    np.testing.assert_array_equal(bump.observations[0], [3.0, -1.0])
    assert bump.observations[1] == "ouch"


def test_events_as_an_observation(make: MakeEnvironment, isolated: bool) -> None:
    environment = make(isolated=isolated, events_observation="events", settings={"length": 4})
    spec = environment.observation_spec()["events"]
    assert isinstance(spec, VariableStringArray)
    steps = [environment.reset(), *(environment.step({}) for _ in range(4))]
    texts = [spec.validate(step.observation["events"]).tolist() for step in steps]
    assert list(map(len, texts)) == [0, 1, 1, 2, 0]
    assert json.loads(texts[3][1]) == {"id": 1, "name": "bump", "observations": [[3, -1], "ouch"]}


def test_properties(make: MakeEnvironment, isolated: bool) -> None:
    environment = make(isolated=isolated)
    assert environment.read_property("speed") == "1"
    environment.write_property("speed", "25")
    assert environment.read_property("speed") == "25"
    listed = environment.list_properties()
    assert listed["speed"] is PropertyAttributes.READ_WRITABLE
    assert listed["calls"] is PropertyAttributes.LISTABLE
    below = environment.list_properties("calls")
    assert len(below) == 31
    assert environment.list_properties(recursive=True) == {**listed, **below}
    with pytest.raises(PropertyError, match="its attributes do not allow it to be written"):
        environment.write_property("violations", "0")
    environment.reset()
    environment.write_property("speed", "26")
    assert environment.step({}).mid()


def test_name_and_fps(make: MakeEnvironment, version: str, isolated: bool) -> None:
    environment = make(version=version, isolated=isolated)
    assert environment.name == "complete"
    assert environment.fps == (60 if version == "1.4" else None)
    assert repr(environment) == "<EnvCApiEnvironment 'complete', ready>"
    environment.reset()
    assert repr(environment) == "<EnvCApiEnvironment 'complete', running>"


def test_only_some_observations(make: MakeEnvironment, isolated: bool) -> None:
    environment = make(observations=["message", "path"], isolated=isolated)
    before = int(environment.read_property("calls.observation"))
    assert list(environment.reset().observation) == ["message", "path"]
    assert int(environment.read_property("calls.observation")) == before + 2


def test_a_context_is_released_once(make: MakeEnvironment, live: ctypes.c_int) -> None:
    library = ctypes.CDLL(compile_library("complete", "1.4"))
    before, released = live.value, library.complete_call_count(b"release_context")
    environment = make()
    assert live.value == before + 1
    environment.close()
    environment.close()
    assert live.value == before
    assert library.complete_call_count(b"release_context") == released + 1
    assert repr(environment) == "<EnvCApiEnvironment 'complete', closed>"
    for call in (
        environment.reset,
        lambda: environment.step({}),
        lambda: environment.read_property("speed"),
        environment.list_properties,
    ):
        with pytest.raises(ConnectionClosedError, match="the environment is closed"):
            call()


def test_a_forgotten_environment_is_released(live: ctypes.c_int) -> None:
    before = live.value
    environment = EnvCApiEnvironment(compile_library("complete", "1.4"), "complete_connect")
    environment.reset()
    assert live.value == before + 1
    del environment
    gc.collect()
    assert live.value == before


def test_threads_may_share_an_environment(make: MakeEnvironment) -> None:
    environment = make(settings={"length": 10**6}, observations=["message"])
    environment.reset()

    def work(_: int) -> None:
        for _ in range(200):
            environment.step({"jump": 1})
            environment.read_property("speed")
            environment.list_properties()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert environment.step({}).observation["message"] == "step 801 \N{CHECK MARK}"
    assert environment.read_property("violations") == "0"


def test_an_event_as_text() -> None:
    event = Event(0, "tick", (np.array([np.nan, np.inf, -np.inf]), "a"))
    observations = [["NaN", "Infinity", "-Infinity"], "a"]
    expected = {"id": 0, "name": "tick", "observations": observations}
    assert json.loads(event_text(event)) == expected


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"color": "red"}, SpecError, "setting 'color': 'red' is invalid: no setting 'color'"),
        ({"width": [1]}, SpecError, "setting 'width' is of type list"),
        ({"fail_init": True}, LibraryError, "init failed with code 7: init was told to fail"),
    ],
)
def test_settings_that_fail_leave_nothing_behind(
    make: MakeEnvironment,
    isolated: bool,
    settings: dict[str, Any],
    error: type[Exception],
    message: str,
    live: ctypes.c_int,
) -> None:
    before = live.value
    with pytest.raises(error, match=message):
        make(settings=settings, isolated=isolated)
    assert live.value == before


def test_start_is_tried_again(make: MakeEnvironment, isolated: bool) -> None:
    environment = make(settings={"eagain": 4}, isolated=isolated)
    # The first episode of this library does not ask for another call, later ones do.
    assert environment.reset().first()
    assert environment.reset().first()
    stubborn = make(settings={"eagain": 4}, start_attempts=4, isolated=isolated)
    stubborn.reset()
    with pytest.raises(LibraryError, match=r"EAGAIN 4 times; its last message: not ready yet"):
        stubborn.reset()
    assert stubborn.reset().first()


def test_start_that_fails(make: MakeEnvironment, isolated: bool) -> None:
    environment = make(settings={"fail_start": True}, isolated=isolated)
    with pytest.raises(LibraryError, match="start failed with code 9: start was told to fail"):
        environment.reset()


def episodes(environment: Any, count: int) -> list[tuple[int, int]]:
    positions = [environment.reset().observation["body"]["position"] for _ in range(count)]
    return [(int(position[0]), int(position[1])) for position in positions]


def test_episodes_and_seeds(make: MakeEnvironment, isolated: bool) -> None:
    counting = make(episode_seeds=40, first_episode=7, isolated=isolated)
    assert episodes(counting, 3) == [(7, 40), (8, 41), (9, 42)]
    arrays = make(episode_seeds=np.array([5, 6]), frames_per_step=np.int64(2), isolated=isolated)
    assert episodes(arrays, 2) == [(0, 5), (1, 6)]
    given = make(episode_seeds=(n * n for n in itertools.count(2)), isolated=isolated)
    assert episodes(given, 3) == [(0, 4), (1, 9), (2, 16)]
    (_, one), (_, other) = episodes(make(isolated=isolated), 2)
    assert one != other


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"episode_seeds": [5]}, "episode_seeds has no seed for episode 1"),
        ({"episode_seeds": [5, 2**31]}, "the seed must be an integer from .*, got 2147483648"),
        ({"episode_seeds": [5, "six"]}, "the seed must be .*, got 'six'"),
        ({"first_episode": 2**31 - 1}, "the episode must be .*, got 2147483648"),
    ],
)
def test_seeds_that_cannot_be(make: MakeEnvironment, kwargs: dict[str, Any], message: str) -> None:
    environment = make(**kwargs)
    environment.reset()
    with pytest.raises(SpecError, match=message):
        environment.reset()
