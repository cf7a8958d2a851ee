"""What any client may do with a world, whatever kind it is of, and wherever it is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from google.rpc import code_pb2

from dm_env_rpc_client import (
    Connection,
    DmEnvRpcError,
    connect,
    create_world,
    destroy_world,
    dm_env_rpc_pb2,
    join_world,
    reset_world,
)
from dm_env_rpc_client.server import serve
from dm_env_rpc_client.tensors.settings import pack_settings
from tests.server.hosted import Where
from tests.server.test_shared_world import Crowd
from tests.support.scripted import settles

ROWS = 3
RUNNING, INTERRUPTED = dm_env_rpc_pb2.RUNNING, dm_env_rpc_pb2.INTERRUPTED
STEP = dm_env_rpc_pb2.StepRequest()


class Kind(NamedTuple):
    """How worlds are served, what they are created with, and what they have of all others."""

    served: Any
    options: dict[str, Any] = {}  # noqa: RUF012
    settings: dict[str, Any] = {}  # noqa: RUF012
    has_one_agent: bool = True
    takes_settings: bool = True


BATCH = {"num_envs": ROWS}
KINDS: dict[str, Kind] = {
    "alone": Kind(Where),
    "threads": Kind(Where, {"threads": "world"}),
    "grpc": Kind(Where, {"transport": "grpc"}),
    "processes": Kind(Where, {"processes": 2}),
    "a batch": Kind(Where, {}, BATCH),
    "a spread batch": Kind(Where, {"processes": 2}, BATCH),
    "a singleton": Kind(Where, {"singleton": True}),
    "an instance": Kind(Where(), takes_settings=False),
    "a game": Kind(Crowd, has_one_agent=False, takes_settings=False),
}


def refused(connection: Connection, request: Any, code: int, text: str) -> None:
    with pytest.raises(DmEnvRpcError, match=text) as caught:
        connection.send(request)
    assert caught.value.code == code


@contextlib.contextmanager
def waiting_reset(connection: Connection, name: str) -> Iterator[None]:
    """A ResetWorld, which waits until the agent has done something."""
    pending = connection.submit(dm_env_rpc_pb2.ResetWorldRequest(world_name=name))
    time.sleep(0.1)  # It would be over by now if it did not wait.
    assert not pending.done()
    yield
    pending.result(20)


@pytest.mark.parametrize("kind", KINDS)
def test_a_world_is_used_by_any_client(kind: str) -> None:
    served, options, settings, has_one_agent, takes_settings = KINDS[kind]
    if has_one_agent:
        options = {"default_actions": {"do": 0}, **options}
    with serve(served, **options) as server, contextlib.ExitStack() as stack:
        creator, player, other = (
            stack.enter_context(connect(server.address, request_timeout=30)) for _ in range(3)
        )
        with pytest.raises(DmEnvRpcError, match=r"colour|takes no settings"):
            create_world(creator, {**settings, "colour": 1})
        unnamed = dm_env_rpc_pb2.JoinWorldRequest()
        refused(creator, unnamed, code_pb2.NOT_FOUND, "no world")
        name = create_world(creator, settings)
        creator.send(unnamed)  # The last world that it has created.
        assert creator.lifecycle.world_name == name
        creator.send(dm_env_rpc_pb2.LeaveWorldRequest())
        with pytest.raises(DmEnvRpcError):
            create_world(creator, {**settings, "colour": 1})
        refused(creator, unnamed, code_pb2.NOT_FOUND, "no world")  # Not the former one.
        refused(player, unnamed, code_pb2.NOT_FOUND, "no world")
        join = dm_env_rpc_pb2.JoinWorldRequest(world_name=name)
        for _ in range(2):
            player.send(join)
            assert player.send(STEP).state == RUNNING
            with pytest.raises(DmEnvRpcError, match="colour"):
                player.send(dm_env_rpc_pb2.ResetRequest(settings=pack_settings({"colour": 1})))
            if kind == "a singleton":  # It was closed first, so that its sequence is over.
                player.send(dm_env_rpc_pb2.ResetRequest())
            assert player.send(STEP).state == RUNNING
            if has_one_agent:
                refused(other, join, code_pb2.FAILED_PRECONDITION, "already has an agent|one at a")
            destroy = dm_env_rpc_pb2.DestroyWorldRequest(world_name=name)
            refused(other, destroy, code_pb2.FAILED_PRECONDITION, "must leave first")
            refused(player, destroy, code_pb2.FAILED_PRECONDITION, "leave it first")
            # The agent hears of a reset by others in its next step, or has gone on itself.
            with waiting_reset(other, name):
                assert player.send(STEP).state == INTERRUPTED
            assert player.send(STEP).state == RUNNING
            with waiting_reset(creator, name):
                player.send(dm_env_rpc_pb2.ResetRequest())
            assert player.send(STEP).state == RUNNING
            with waiting_reset(creator, name):
                player.send(dm_env_rpc_pb2.LeaveWorldRequest())
        if takes_settings:
            seen = []
            for doubled in (0, 1):
                reset_world(other, name, {"doubled": doubled})
                with join_world(player, name) as env:
                    seen.append(env.reset().observation["pid"])
            np.testing.assert_array_equal(2 * seen[0], seen[1])
        destroy_world(other, name)
        for request in (join, dm_env_rpc_pb2.DestroyWorldRequest(world_name=name)):
            refused(player, request, code_pb2.NOT_FOUND, "no world")
        assert create_world(creator, settings) != name
        destroy_world(player, creator.lifecycle.created)
        assert settles(lambda: (server.world_count, server.agent_count) == (0, 0))
        assert server.errors == []
