"""Every function of the interface is called, through the layer that maps them."""

from __future__ import annotations

import ctypes
import errno

import numpy as np
import pytest

from dm_env_rpc_client.bridges.env_c_api.context import Context, Status
from dm_env_rpc_client.bridges.env_c_api.declarations import VERSIONS, layout
from dm_env_rpc_client.bridges.env_c_api.description import ObservationType
from dm_env_rpc_client.bridges.env_c_api.library import open_context
from dm_env_rpc_client.bridges.env_c_api.library_properties import PropertyAttributes
from dm_env_rpc_client.errors import LibraryError, PropertyError, SpecError
from tests.bridges.env_c_api.compiling import compile_library


def open_complete(version: str) -> tuple[Context, ctypes.CDLL]:
    path = compile_library("complete", version)
    return open_context(layout(version), path, "complete_connect"), ctypes.CDLL(path)


def calls(library: ctypes.CDLL, function: str) -> int:
    return int(library.complete_call_count(function.encode()))


def test_every_function_of_a_version_is_called(version: str) -> None:
    context, library = open_complete(version)
    functions = layout(version).functions
    before = {name: calls(library, name) for name in functions}

    context.setting("length", "3")
    with pytest.raises(SpecError, match="setting 'color': 'red' is invalid: no setting 'color'"):
        context.setting("color", "red")
    context.init()
    context.write_property("speed", "12")
    assert context.read_property("speed") == "12"
    assert context.list_property("")["calls"] is PropertyAttributes.LISTABLE
    assert context.name("environment_name") == "complete"
    assert context.count("action_discrete_count") == 2
    assert context.count("action_continuous_count") == 1
    assert context.count("action_text_count") == 1
    assert context.name("action_discrete_name", 1) == "jump"
    assert context.name("action_continuous_name", 0) == "throttle"
    assert context.name("action_text_name", 0) == "say"
    assert context.action_bounds("discrete", 0) == (-10, 10)
    assert context.action_bounds("continuous", 0) == (-1.0, 1.0)
    assert context.count("observation_count") == (6 if version == "1.4" else 8)
    assert context.name("observation_name", 0) == "camera"
    assert context.observation_spec(0) == (ObservationType.BYTES, (72, 96, 3))
    assert context.count("event_type_count") == 2
    assert context.name("event_type_name", 1) == "bump"
    assert context.fps() == (60 if version == "1.4" else None)
    assert context.start(0, 7)
    np.testing.assert_array_equal(context.observation(1, 1000, "it"), [0.0, 7.0, 0.0])
    assert context.event_count() == 0
    context.act_discrete([2, 1])
    context.act_continuous([1.0])
    assert context.advance(1) == (Status.RUNNING, 12.5)
    context.act_discrete([3, 0])
    context.act_continuous([-1.0])
    context.act_text(["ab"])
    assert context.event_count() == 1
    assert context.event(0, ["tick", "bump"], 0).name == "tick"
    assert context.advance(2) == (Status.TERMINATED, 9.0)
    assert context.read_property("violations") == "0"
    context.release()

    assert len(functions) == (31 if version == "1.4" else 29)
    not_called = [name for name in functions if calls(library, name) <= before[name]]
    # It is deprecated, and the same as act_discrete and act_continuous.
    assert not_called == (["act"] if version == "1.4" else [])


@pytest.mark.parametrize("version", VERSIONS)
def test_the_struct_has_the_size_that_the_compiler_gives_it(version: str) -> None:
    count = 31 if version == "1.4" else 29
    assert layout(version).size == count * ctypes.sizeof(ctypes.c_void_p)
    assert len(layout(version).functions) == count


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_runs_an_episode(version: str) -> None:
    context, _ = open_complete(version)
    context.init()
    assert context.start(0, 0)
    if version in ("2.1", "2.2"):
        np.testing.assert_array_equal(
            context.observation(6, 1000, "it"), np.array([0, -(2**31)], np.int32)
        )
        np.testing.assert_array_equal(context.observation(7, 1000, "it"), [2**63 - 1])
    assert context.advance(10)[0] is Status.TERMINATED
    context.release()


def test_an_unknown_version_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(SpecError, match=r"unknown EnvCApi version '1.3'.*1\.4, 2\.0, 2\.1, 2\.2"):
        layout("1.3")


def test_return_codes_become_errors_with_the_message_of_the_library() -> None:
    context, _ = open_complete("1.4")
    context.setting("fail_init", "true")
    with pytest.raises(LibraryError, match="init was told to fail") as failure:
        context.init()
    assert (failure.value.function, failure.value.code) == ("init", 7)
    context.release()

    context, _ = open_complete("1.4")
    context.setting("eagain", "1")
    context.setting("fail_start", "true")
    context.init()
    with pytest.raises(LibraryError, match="start was told to fail"):
        context.start(0, 0)
    assert not context.start(0, 0), errno.errorcode[errno.EAGAIN]
    context.release()


@pytest.mark.parametrize(
    ("operation", "key", "result"),
    [
        ("read", "nothing", "NOT_FOUND"),
        ("read", "secret", "PERMISSION_DENIED"),
        ("write", "nothing", "NOT_FOUND"),
        ("write", "violations", "PERMISSION_DENIED"),
        ("write", "speed", "INVALID_ARGUMENT"),
        ("list", "nothing", "NOT_FOUND"),
        ("list", "speed", "PERMISSION_DENIED"),
    ],
)
def test_results_of_properties(operation: str, key: str, result: str) -> None:
    context, _ = open_complete("1.4")
    context.init()
    call = {
        "read": context.read_property,
        "write": lambda key: context.write_property(key, "fast"),
        "list": context.list_property,
    }[operation]
    with pytest.raises(PropertyError, match=f"cannot {operation} property '{key}'") as refusal:
        call(key)
    assert (refusal.value.operation, refusal.value.key) == (operation, key)
    assert refusal.value.code_name == result
    context.release()


def test_strings_with_a_null_never_reach_the_library() -> None:
    context, _ = open_complete("1.4")
    with pytest.raises(SpecError, match="null character"):
        context.setting("width\0", "1")
    context.release()


def test_event_observations_are_copies() -> None:
    context, _ = open_complete("2.2")
    context.init()
    assert context.start(0, 0)
    context.advance(3)
    assert context.event_count() == 2
    event = context.event(1, ["tick", "bump"], 1000)
    context.observation(0, 10**6, "it")
    np.testing.assert_array_equal(event.observations[0], [3.0, -1.0])
    assert event.observations[1] == "ouch"
    context.release()
