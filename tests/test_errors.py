"""One tree of errors, which say what they know and travel between processes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from google.protobuf import any_pb2, struct_pb2
from google.rpc import code_pb2, status_pb2

import dm_env_rpc_client
from dm_env_rpc_client import errors
from dm_env_rpc_client.errors import (
    AgentsFailedError,
    ConnectionClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvRpcClientError,
    DmEnvRpcError,
    EnvironmentsFailedError,
    LaunchError,
    LibraryError,
    PropertyError,
    PropertyNotFoundError,
    PropertyPermissionError,
    PropertyValueError,
    ProtocolError,
    RecordingError,
    SpecError,
    UnknownNameError,
)


def status(code: int = 5, message: str = "no such world") -> status_pb2.Status:
    detail = any_pb2.Any()
    detail.Pack(struct_pb2.Value(number_value=1))
    return status_pb2.Status(code=code, message=message, details=[detail])


ERRORS: list[tuple[DmEnvRpcClientError, type[Exception]]] = [
    (AgentsFailedError({"red": ConnectionLostError("lost")}, "localhost:1"), Exception),
    (DmEnvRpcError(status()), Exception),
    (ConnectionClosedError("closed"), ConnectionError),
    (ConnectionLostError("lost"), ConnectionError),
    (ConnectionLostError("lost", "UNAVAILABLE"), ConnectionError),
    (ConnectionLostError("lost", None, LaunchError("died", "engine", 3, "no")), ConnectionError),
    (DeadlineExceededError("late"), TimeoutError),
    (EnvironmentsFailedError({3: ConnectionLostError("lost")}, {3: "localhost:1"}), Exception),
    (LaunchError("ended with exit code 7", "./engine", 7, "no licence"), Exception),
    (LibraryError("start", 11, "not now"), Exception),
    (PropertyError("read", "speed", status()), DmEnvRpcError),
    (PropertyNotFoundError("read", "speed", status()), KeyError),
    (PropertyPermissionError("write", "speed", status(7)), PermissionError),
    (PropertyValueError("write", "speed", status(3)), ValueError),
    (ProtocolError("broken"), Exception),
    (RecordingError("the disk is full"), Exception),
    (SpecError("wrong"), ValueError),
    (UnknownNameError("no such name"), KeyError),
]
each_error = pytest.mark.parametrize(("error", "builtin"), ERRORS)


@each_error
def test_every_error_is_in_the_tree_and_public(error: Any, builtin: type[Exception]) -> None:
    assert isinstance(error, DmEnvRpcClientError)
    assert isinstance(error, builtin)
    assert type(error).__name__ in errors.__all__
    assert getattr(dm_env_rpc_client, type(error).__name__) is type(error)


def test_the_table_has_every_error() -> None:
    others = {"DmEnvRpcClientError", "RestartWarning"}
    assert {type(error).__name__ for error, _ in ERRORS} | others == set(errors.__all__)


@each_error
@pytest.mark.parametrize("how", ["copy", "deepcopy", *range(2, pickle.HIGHEST_PROTOCOL + 1)])
def test_a_copy_says_the_same(error: Any, builtin: type[Exception], how: str | int) -> None:
    if isinstance(how, int):
        twin = pickle.loads(pickle.dumps(error, how))
    else:
        twin = getattr(copy, how)(error)
    assert type(twin) is type(error)
    assert isinstance(twin, builtin)
    assert str(twin) == str(error)
    assert repr(twin) == repr(error)
    for attribute in ("code", "message", "details"):
        assert getattr(twin, attribute, None) == getattr(error, attribute, None)


def test_a_servers_error_says_what_the_server_said() -> None:
    error = DmEnvRpcError(status())
    assert (error.code, error.code_name, error.message) == (5, "NOT_FOUND", "no such world")
    assert error.code == code_pb2.NOT_FOUND
    assert str(error) == "the server answered NOT_FOUND: no such world"
    assert repr(error) == "DmEnvRpcError(code=NOT_FOUND, message='no such world')"
    value = struct_pb2.Value()
    assert error.details[0].Unpack(value)
    assert value.number_value == 1


@pytest.mark.parametrize(
    ("code", "name"), [(0, "OK"), (16, "UNAUTHENTICATED"), (99, "99"), (-1, "-1")]
)
def test_every_number_is_a_code(code: int, name: str) -> None:
    error = DmEnvRpcError(status_pb2.Status(code=code))
    assert (error.code, error.code_name) == (code, name)
    what = name if code else "an error without a code"
    assert str(error) == f"the server answered {what}: (no message)"


def test_an_error_keeps_its_own_status() -> None:
    original = status()
    error = DmEnvRpcError(original)
    original.message = "changed"
    assert error.message == "no such world"


@pytest.mark.parametrize(
    ("operation", "result", "kind", "text"),
    [
        ("read", "NOT_FOUND", PropertyNotFoundError, "there is no such property"),
        ("write", "PERMISSION_DENIED", PropertyPermissionError, "not allow it to be written"),
        ("write", "INVALID_ARGUMENT", PropertyValueError, "not accept this value"),
    ],
)
def test_a_refusal_is_the_same_from_a_server_and_from_this_process(
    operation: str, result: str, kind: type[PropertyError], text: str
) -> None:
    local = PropertyError.of_result(operation, "speed", result)
    # A server that hosts the environment sends its text.
    sent = status_pb2.Status(code=local.code, message=str(local))
    remote = PropertyError.of_status(operation, "speed", sent)
    for error in (local, remote):
        assert isinstance(error, kind)
        assert str(error).startswith(f"cannot {operation} property 'speed': ")
        assert str(error).endswith(text)
        assert (error.operation, error.key, error.code_name) == (operation, "speed", result)
    assert str(local) == str(remote)


def test_a_refusal_without_a_text_says_its_code() -> None:
    error = PropertyError.of_status("read", "speed", status_pb2.Status(code=5))
    assert str(error) == "cannot read property 'speed': NOT_FOUND"


def test_a_lost_connection_knows_the_code_it_was_lost_with() -> None:
    assert ConnectionLostError("lost").code is None
    error = ConnectionLostError("lost", "UNAVAILABLE")
    assert (str(error), error.code) == ("lost", "UNAVAILABLE")


def test_a_traceback_that_cannot_be_parsed_is_left_out() -> None:
    detail = any_pb2.Any(type_url="type.googleapis.com/google.rpc.DebugInfo", value=b"\xff")
    error = DmEnvRpcError(status_pb2.Status(code=13, message="broken", details=[detail]))
    assert str(error) == "the server answered INTERNAL: broken"
