"""Libraries: what is declared, connect functions of every shape, every function, and limits."""

from __future__ import annotations

import ctypes
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client.bridges.env_c_api import EnvCApiEnvironment, environment_factory
from dm_env_rpc_client.bridges.env_c_api.declarations import VERSIONS, header, layout
from dm_env_rpc_client.bridges.env_c_api.description import (
    ObservationDescription,
    ObservationType,
)
from dm_env_rpc_client.bridges.env_c_api.library_properties import (
    PropertyAttributes,
    list_recursively,
)
from dm_env_rpc_client.errors import LibraryError, ProtocolError, SpecError
from dm_env_rpc_client.tensors.memory_limits import Limits
from tests.bridges.env_c_api.compiling import compile_library
from tests.bridges.env_c_api.conftest import MakeEnvironment
from tests.support.groups import need
from tests.support.stopwatch import patience

WITH_PARAMS = "complete_connect_with_params"


def address_of(path: str, symbol: str) -> int:
    address = ctypes.cast(ctypes.CDLL(path)[symbol], ctypes.c_void_p).value
    assert address is not None
    return address


def symbol_offset(path: str, symbol: str) -> str:
    need("compiler")
    lines = subprocess.check_output(["nm", path], text=True, timeout=patience(30)).splitlines()
    offset = next(line.split()[0] for line in lines if line.endswith(f" {symbol}"))
    return f"+0x{offset}"


def runs(environment: EnvCApiEnvironment) -> bool:
    with environment:
        return bool(environment.reset().first() and environment.step({}).mid())


def test_the_address_of_a_function() -> None:
    path = compile_library("complete", "1.4")
    address = address_of(path, "complete_connect")
    assert runs(EnvCApiEnvironment(path, address))
    assert runs(EnvCApiEnvironment(None, address))
    assert runs(EnvCApiEnvironment(path, ctypes.CDLL(path).complete_connect))
    function = layout("1.4").ffi.cast("int (*)(EnvCApi*, void**)", address)
    assert runs(EnvCApiEnvironment(path, function))


def test_the_offset_of_a_function_that_is_not_exported(
    make: MakeEnvironment, isolated: bool
) -> None:
    path = compile_library("complete", "1.4", "-fvisibility=hidden")
    with pytest.raises(SpecError, match="exports no function 'complete_connect'; for a function"):
        EnvCApiEnvironment(path, "complete_connect")
    offset = symbol_offset(path, "complete_connect")
    assert runs(EnvCApiEnvironment(path, offset, isolated=isolated))


@pytest.mark.parametrize("form", ["pointer", "address", "bytes", "ctypes"])
def test_a_callable_that_connects(form: str) -> None:
    ffi = layout("1.4").ffi
    function = ffi.cast(
        "int (*)(EnvCApi*, void**)",
        address_of(compile_library("complete", "1.4"), "complete_connect"),
    )
    keep: list[Any] = []

    def connect() -> tuple[Any, Any]:
        api, context = ffi.new("EnvCApi*"), ffi.new("void**")
        keep.append(api)
        assert function(api, context) == 0
        address = int(ffi.cast("uintptr_t", context[0]))
        if form == "pointer":
            return api, context[0]
        if form == "address":
            return int(ffi.cast("uintptr_t", api)), address
        if form == "bytes":
            return bytes(ffi.buffer(api)), address
        return (ctypes.c_void_p * 31).from_buffer_copy(ffi.buffer(api)), ctypes.c_void_p(address)

    assert runs(EnvCApiEnvironment(None, connect))


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        ((b"\1" * 232, 1), SpecError, r"the struct has 232 bytes; expected 248 for version 1\.4"),
        (("struct", 1), SpecError, "returned str for the struct"),
        ((b"\1" * 248, "context"), SpecError, "returned str for the context"),
        ((b"\1" * 248, 0), ProtocolError, "its context is null"),
        ((b"\1" * 248, ctypes.c_void_p()), ProtocolError, "its context is null"),
        ((b"\0" * 248, 1), ProtocolError, "leaves setting, .* null"),
    ],
)
def test_a_callable_that_returns_what_cannot_be(
    result: tuple[Any, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        EnvCApiEnvironment(None, lambda: result)


def test_strings_as_launch_parameters(make: MakeEnvironment, isolated: bool) -> None:
    for params in (["a title", "interrupted"], ("a title", b"interrupted")):
        environment = make(WITH_PARAMS, launch_params=params, isolated=isolated)
        assert environment.read_property("title") == "a title"
    assert make(WITH_PARAMS, launch_params=["one"], isolated=isolated).reset().first()


def test_the_bytes_of_a_struct_as_launch_parameters(make: MakeEnvironment, isolated: bool) -> None:
    params = struct.pack("@id", 5, 2.0)
    environment = make("complete_connect_with_numbers", launch_params=params, isolated=isolated)
    assert environment.observation_spec()["camera"].shape == (72, 5, 3)


def test_a_connect_function_that_refuses_its_parameters(make: MakeEnvironment) -> None:
    with pytest.raises(LibraryError, match="connect function failed with code 22"):
        make(WITH_PARAMS, launch_params=[])


@pytest.mark.parametrize(
    ("library", "connect", "kwargs", "message"),
    [
        ("missing.so", "connect", {}, "cannot load the library /.*/missing.so"),
        (None, "connect", {}, "needs a library"),
        ("complete", "+twelve", {}, r"expected an offset such as '\+0x1234'"),
        ("complete", "missing", {}, "exports no function 'missing'"),
        ("complete", WITH_PARAMS, {"launch_params": "text"}, "launch_params is 'text'"),
        ("complete", lambda: None, {"launch_params": []}, "a callable must bind its own arguments"),
        (None, "connect", {"isolated": True}, "a child process needs the path of a library"),
        ("complete", 4096, {"isolated": True}, "a child process needs the path of a library"),
        ("complete", "complete_connect", {"version": "1.3"}, "unknown EnvCApi version '1.3'"),
    ],
)
def test_what_cannot_be_opened(
    library: str | None, connect: Any, kwargs: dict[str, Any], message: str
) -> None:
    path = compile_library("complete", "1.4") if library == "complete" else library
    with pytest.raises(SpecError, match=message):
        EnvCApiEnvironment(path, connect, **kwargs)


_PROGRAM = """
#include <stddef.h>
#include "env_c_api.h"
_Static_assert(sizeof(EnvCApi) == {size}, "the size");
_Static_assert(offsetof(EnvCApi, advance) == {size} - sizeof(void*), "what comes last");
"""


@pytest.mark.compiler
@pytest.mark.parametrize("version", VERSIONS)
def test_a_compiler_lays_the_struct_out_in_the_same_way(version: str, tmp_path: Path) -> None:
    (tmp_path / "env_c_api.h").write_text(header(version))
    program = tmp_path / "program.c"
    program.write_text(_PROGRAM.format(size=layout(version).size))
    command = ["cc", "-Wall", "-Werror", "-c", str(program), "-o", str(tmp_path / "o")]
    subprocess.run(command, check=True, timeout=patience(60))


def test_only_known_versions_are_declared() -> None:
    with pytest.raises(SpecError, match=r"unknown EnvCApi version '3\.0'"):
        header("3.0")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_function_of_a_version_is_called(make: MakeEnvironment, version: str) -> None:
    library = ctypes.CDLL(compile_library("complete", version))

    def calls(function: str) -> int:
        return int(library.complete_call_count(function.encode()))

    functions = layout(version).functions
    before = {name: calls(name) for name in functions}
    with pytest.raises(SpecError, match="setting 'color': 'red' is invalid: no setting 'color'"):
        make(version=version, settings={"color": "red"})
    environment = make(version=version, settings={"length": 3}, episode_seeds=7)
    environment.write_property("speed", "12")
    environment.list_properties()
    np.testing.assert_array_equal(environment.reset().observation["body"]["position"], [0, 7, 0])
    action = {"turn": {"horizontal": 2}, "jump": 1, "throttle": 1.0, "say": "ab"}
    assert environment.step(action).reward == 14.5
    assert environment.step({}).mid()
    assert environment.step({}).last()
    assert environment.read_property("violations") == "0"
    environment.close()
    not_called = [name for name in functions if calls(name) <= before[name]]
    # It is deprecated, and the same as act_discrete and act_continuous.
    assert not_called == (["act"] if version == "1.4" else [])


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 3), {"o": (2, 3)}),
        ((), {"o": ()}),
        ((0,), {"o": (-1,)}),
        ((4, 0, 3), {"o": (4, -1, 3)}),
        ((0, 0), {"o.values": (-1,), "o.shape": (2,)}),
        (None, {"o.values": (-1,), "o.shape": (-1,)}),
    ],
)
def test_shapes_become_what_the_protocol_can_say(
    shape: tuple[int, ...] | None, expected: dict[str, tuple[int, ...]]
) -> None:
    described = ObservationDescription("o", ObservationType.BYTES, shape)
    assert {name: spec.shape for name, spec in described.specs().items()} == expected
    assert described.is_group == (len(expected) == 2)


@pytest.mark.parametrize("shape", [(0,), (5,), None])
def test_a_string_is_a_scalar_whatever_its_length(shape: tuple[int, ...] | None) -> None:
    described = ObservationDescription("o", ObservationType.STRING, shape)
    (spec,) = described.specs().values()
    assert isinstance(spec, specs.StringArray)
    assert (spec.shape, described.fixed_bytes, described.is_group) == ((), 0, False)
    assert described.value_conforms("text")


def test_a_key_that_turns_up_again_is_not_listed_again() -> None:
    tree = {"": ["a", "b"], "a": ["", "a", "c"], "b": ["c"], "c": []}
    listed = []

    def list_property(key: str) -> dict[str, PropertyAttributes]:
        listed.append(key)
        return dict.fromkeys(tree[key], PropertyAttributes.LISTABLE)

    assert sorted(list_recursively(list_property, "")) == ["", "a", "b", "c"]
    assert sorted(listed) == ["", "", "a", "b", "c"]


CAMERA_BYTES = 72 * 96 * 3


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (
            {"message_bytes": CAMERA_BYTES - 1},
            r"\[72, 96, 3\] takes 20736 bytes; at most 20735 are allowed \(Limits\.message_bytes\)",
        ),
        (
            {"message_bytes": CAMERA_BYTES},
            r"the observations together take 207\d\d bytes; at most 20736 are allowed",
        ),
        ({"specs": 1}, r"action_discrete_count is 2; expected 0 to 1 \(Limits\.specs\)"),
        ({"name_bytes": 4}, r"action_discrete_name of 0 does not end within 4 bytes \(Limits\)"),
    ],
)
def test_a_library_beyond_the_limits_is_not_opened(
    make: MakeEnvironment, isolated: bool, limit: dict[str, int], message: str
) -> None:
    with pytest.raises(ProtocolError, match=message):
        make(isolated=isolated, limits=Limits(**limit))


def test_observations_whose_size_changes_share_what_is_left(
    make: MakeEnvironment, isolated: bool
) -> None:
    env = make(isolated=isolated)
    assert env._runner is not None
    fixed = env._runner.description.fixed_bytes
    assert make(isolated=isolated, limits=Limits(message_bytes=fixed + 1000)).reset().first()
    with pytest.raises(ProtocolError, match=r"with the earlier values, this exceeds .*Limits"):
        make(isolated=isolated, limits=Limits(message_bytes=fixed)).reset()


def test_properties_beyond_the_limits(make: MakeEnvironment, isolated: bool) -> None:
    def limited(**limit: int) -> Any:
        return make(isolated=isolated, settings={"world.title": "x" * 40}, limits=Limits(**limit))

    with pytest.raises(ProtocolError, match="value of property 'title' does not end within 39"):
        limited(text_bytes=39).read_property("title")
    assert limited(text_bytes=40).read_property("title") == "x" * 40
    count = len(limited().list_properties(recursive=True))
    most = rf"more than {count - 1} properties below '' \(Limits\.specs\)"
    with pytest.raises(ProtocolError, match=most):
        limited(specs=count - 1).list_properties(recursive=True)
    with pytest.raises(ProtocolError, match=r"more than 1 levels .* \(Limits\.nesting\)"):
        limited(nesting=1).list_properties(recursive=True)
    assert len(limited(nesting=2, specs=count).list_properties(recursive=True)) == count


def test_the_message_of_an_error_is_cut_off(make: MakeEnvironment, isolated: bool) -> None:
    with pytest.raises(LibraryError, match=r"code 7: init wa\.\.\. \(more than 7 bytes\)"):
        make(isolated=isolated, settings={"fail_init": True}, limits=Limits(error_bytes=7))


def test_a_factory_for_a_server_takes_limits() -> None:
    path = compile_library("complete", "1.4")
    factory = environment_factory(path, "complete_connect", limits=Limits(specs=1))
    with pytest.raises(ProtocolError, match=r"Limits\.specs"):
        factory()
