"""Connect functions of every shape, and what launches them."""

from __future__ import annotations

import ctypes
import struct
import subprocess
from typing import Any

import pytest

from dm_env_rpc_client.bridges.env_c_api import EnvCApiEnvironment
from dm_env_rpc_client.bridges.env_c_api.declarations import layout
from dm_env_rpc_client.errors import LibraryError, ProtocolError, SpecError
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
