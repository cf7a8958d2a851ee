"""Row 17: what fails while a world is created and joined leaves nothing on the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import dm_env
import pytest

import dm_env_rpc_client
from dm_env_rpc_client import (
    BatchedEnvironment,
    DmEnvAdaptor,
    connect,
    create_and_join_world,
    make,
    make_async,
)
from dm_env_rpc_client.server import Catch, Server, serve
from tests.reliability.recording import Seen
from tests.support.environments import Broken
from tests.support.scripted import settles

pytestmark = pytest.mark.row(17)


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
    "ambiguous create settings": ((Catch, {"rows": 3, "rows.x": 4}, {}), "conflict: "),
    "environment cannot be made": (_broken("__init__"), "broken in __init__"),
    "environment has no action spec": (_broken("action_spec"), "broken in action_spec"),
    "environment has no observation spec": (_broken("observation_spec"), "observation_spec"),
    "names with periods": (_broken("ambiguous"), "'a' and 'a.b' conflict: "),
    "dtype that cannot be sent": (_broken("dtype"), "complex64"),
    "observation named reward": (_broken("name"), "rename it"),
    "factory returns no environment": (
        (lambda: None, {}, {}),
        "the factory returned None; expected a dm_env.Environment",
    ),
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


def _create_and_join(address: str, create: Any, **how: Any) -> None:
    with connect(address) as connection:
        create_and_join_world(connection, create, how.pop("join_world_settings", {}), **how)


WAYS: dict[str, Callable[..., object]] = {
    "create_and_join_world": _create_and_join,
    "make": make,
    "batch": lambda address, *create, **how: BatchedEnvironment(address, 3, *create, **how),
    "asyncio": lambda *create, **how: asyncio.run(make_async(*create, **how)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("failure", FAILURES)
def test_row_17_a_failure_on_the_way_leaves_nothing_on_the_server(
    failure: str, way: str, seen: Seen
) -> None:
    (factory, create, arguments), text = FAILURES[failure]
    # What an adaptor raises is tried with that of `make`.
    said = text if way == "make" else None
    with serve(factory) as server:
        with pytest.raises((Exception, KeyboardInterrupt, SystemExit), match=said):
            WAYS[way](server.address, create, **arguments)
        settles(lambda: (server.agent_count, server.world_count) == (0, 0), 1.0)
        left = server.agent_count + server.world_count
        seen(failures=1, agents_and_worlds_left=left)
        assert left == 0


def test_an_interrupt_while_a_batch_is_joined_destroys_its_world(
    catch_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = dm_env_rpc_client.Connection.wait

    def interrupted(self: Any, pending: Any) -> Any:
        field = pending.field
        answer = wait(self, pending)
        if field == "join_world":
            self._poison(KeyboardInterrupt())
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(dm_env_rpc_client.Connection, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        BatchedEnvironment(catch_server.address, 3)
    assert settles(lambda: catch_server.world_count == 0, 1.0)
