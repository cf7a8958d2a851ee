"""Creating, joining and destroying worlds, and undoing what fails half way (row 17)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dm_env
import numpy as np
import pytest
from google.rpc import code_pb2

import dm_env_rpc_client
from dm_env_rpc_client import (
    DmEnvAdaptor,
    DmEnvRpcError,
    SpecError,
    connect,
    create_and_join_world,
    create_world,
    destroy_world,
    join_world,
    leave_world,
    make,
    pack_tensor,
    reset_world,
)
from dm_env_rpc_client.server import Catch, Server, serve
from tests.environments import Broken, Robot
from tests.reliability.recording import Seen
from tests.scripted import settles


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


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"rows": None}, "setting 'rows'.*NoneType"),
        ({"rows": [1, "a"]}, "setting 'rows'.*mixes"),
        ({"a": {"b": 1}, "a.b": 2}, "'a.b' is given twice"),
        ({3: 1}, "names must be strings"),
    ],
)
def test_settings_that_cannot_be_sent_are_refused_before_anything_is(
    catch_server: Server, settings: Any, text: str
) -> None:
    for arguments in [(settings, {}), ({}, settings)]:
        with pytest.raises(SpecError, match=text):
            make(catch_server.address, *arguments)
    assert catch_server.world_count == 0


def test_one_step_at_a_time(catch_server: Server) -> None:
    with connect(catch_server.address) as connection:
        first = create_world(connection, {"rows": 3})
        second = create_world(connection)
        assert first != second
        with join_world(connection, first) as env:
            assert env.reset().observation["board"].shape == (3, 5)
            with pytest.raises(DmEnvRpcError, match="leave it first") as caught:
                destroy_world(connection, first)
            assert caught.value.code == code_pb2.FAILED_PRECONDITION
            env.step({"paddle": 1})
            reset_world(connection, first)
            assert env.step({"paddle": 1}).first()
        leave_world(connection)
        reset_world(connection, second, {"rows": 6})
        with join_world(connection, second) as env:
            assert env.reset().observation["board"].shape == (6, 5)
        for name in (first, second):
            destroy_world(connection, name)
        with pytest.raises(DmEnvRpcError, match="no world") as caught:
            destroy_world(connection, first)
        assert caught.value.code == code_pb2.NOT_FOUND


def _adaptor_that_fails(error: BaseException) -> type[DmEnvAdaptor]:
    class Failing(DmEnvAdaptor):
        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            raise error

    return Failing


def _broken(at: str) -> tuple[Callable[..., dm_env.Environment], dict[str, Any], dict[str, Any]]:
    return Broken, {"at": at}, {}


INTERRUPTED = _adaptor_that_fails(KeyboardInterrupt("stop"))

# A factory, what to create with and what to join with, and what the error says: twenty ways
# for `make` to fail.
FAILURES: dict[str, tuple[tuple[Any, dict[str, Any], dict[str, Any]], str]] = {
    "unknown create setting": ((Catch, {"colour": 1}, {}), "settings: rows, columns, seed"),
    "create setting of a wrong value": ((Catch, {"rows": 0}, {}), "at least 2 rows"),
    "create setting of a wrong type": ((Catch, {"rows": "many"}, {}), "does not take these"),
    "ambiguous create settings": ((Catch, {"rows": 3, "rows.x": 4}, {}), "exclude each other"),
    "environment cannot be made": (_broken("__init__"), "broken in __init__"),
    "environment has no action spec": (_broken("action_spec"), "broken in action_spec"),
    "environment has no observation spec": (_broken("observation_spec"), "observation_spec"),
    "names with periods": (_broken("ambiguous"), "separates levels"),
    "dtype that cannot be sent": (_broken("dtype"), "complex64"),
    "observation named reward": (_broken("name"), "rename it"),
    "factory returns no environment": ((lambda: None, {}, {}), "NoneType"),
    "unknown join setting": ((Catch, {}, {"join_world_settings": {"name": 1}}), "'name'"),
    "unsendable join setting": ((Catch, {}, {"join_world_settings": {"name": None}}), "'name'"),
    "unknown observation": ((Catch, {}, {"requested_observations": ["nope"]}), "'nope'"),
    "observations are no list": ((Catch, {}, {"requested_observations": "board"}), "a list"),
    "extension takes an attribute": ((Catch, {}, {"extensions": {"step": 1}}), "'step'"),
    "unknown adaptor argument": ((Catch, {}, {"colour": 1}), "colour"),
    "adaptor raises": (
        (Catch, {}, {"adaptor_class": _adaptor_that_fails(RuntimeError("no"))}),
        "no",
    ),
    "adaptor is interrupted": ((Catch, {}, {"adaptor_class": INTERRUPTED}), "stop"),
    "adaptor exits": ((Catch, {}, {"adaptor_class": _adaptor_that_fails(SystemExit(3))}), "3"),
}


@pytest.mark.row(17)
@pytest.mark.parametrize("failure", FAILURES)
def test_row_17_a_failure_on_the_way_leaves_nothing_on_the_server(failure: str, seen: Seen) -> None:
    (factory, create, arguments), text = FAILURES[failure]
    with serve(factory) as server:
        with pytest.raises((Exception, KeyboardInterrupt, SystemExit), match=text):
            make(server.address, create, **arguments)
        settles(lambda: (server.agent_count, server.world_count) == (0, 0), 1.0)
        left = server.agent_count + server.world_count
        seen(failures=1, agents_and_worlds_left=left)
        assert left == 0


@pytest.mark.row(17)
def test_row_17_an_interrupt_while_joining_destroys_the_world_over_a_new_connection(
    catch_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = dm_env_rpc_client.Connection.send

    def interrupted(self: Any, request: Any, timeout: float | None = None) -> Any:
        answer = send(self, request, timeout)
        if type(request).__name__ == "JoinWorldRequest":
            self._pipeline.poison(KeyboardInterrupt())
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(dm_env_rpc_client.Connection, "send", interrupted)
    with connect(catch_server.address) as connection:
        with pytest.raises(KeyboardInterrupt):
            create_and_join_world(connection, {}, {})
        assert settles(lambda: catch_server.world_count == 0, 1.0)
