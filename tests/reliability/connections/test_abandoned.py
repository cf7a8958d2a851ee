"""Row 35: clients that are killed while the server waits on their behalf."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection as Pipe

import numpy as np
import pytest

from dm_env_rpc_client import connect, dm_env_rpc_pb2, pack_tensor
from dm_env_rpc_client.client.connection import Connection
from dm_env_rpc_client.server import Catch, Race, Server, serve
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support import forks
from tests.support.both_transports import forced, obey
from tests.support.scripted import settles

pytestmark = pytest.mark.row(35)

FREED_SECONDS = 2.0
SLOTS = 4

Join = dm_env_rpc_pb2.JoinWorldRequest
ResetWorld = dm_env_rpc_pb2.ResetWorldRequest
Step = dm_env_rpc_pb2.StepRequest
STILL = Step(actions={1: pack_tensor(1, np.int32)})


def _wait_in_reset_world(address: str, world: str, transport: str, told: Pipe) -> None:
    obey(transport)
    connection = connect(address)
    connection.start(ResetWorld(world_name=world))
    told.send("sent")
    told.recv()


def _wait_in_step(address: str, world: str, transport: str, told: Pipe) -> None:
    obey(transport)
    connection = connect(address)
    connection.send(Join(world_name=world))
    connection.start(Step())
    told.send("sent")
    told.recv()


def kill_a_client(
    target: Callable[..., None], server: Server, world: str = "", *, agents: int
) -> None:
    """Starts a client in a process of its own, and kills it when the server waits for it."""
    with forks.child(target, server.address, world, forced()) as (_, pipe):
        assert pipe.recv() == "sent"
        assert server.agent_count == agents
        assert settles(is_held)


def is_held() -> bool:
    """Whether a thread of the server, in this process, waits on behalf of a client."""
    return any(
        frame.filename.endswith("server/waiting.py") and frame.name == "wait"
        for top in sys._current_frames().values()
        for frame in traceback.extract_stack(top)
    )


@pytest.fixture
def race() -> Iterator[Server]:
    with serve(Race(players=2), max_connections=SLOTS) as server:
        yield server


@pytest.fixture
def player(race: Server) -> Iterator[Connection]:
    """An agent of the race whose sequence is running, and who takes no step."""
    with connect(race.address) as one, connect(race.address) as other:
        for connection in (one, other):
            connection.send(Join())
        pending = one.start(Step())
        assert other.send(Step()).state == one.wait(pending).state == dm_env_rpc_pb2.RUNNING
        yield one


@counts(5, 50)  # on each of two transports
def test_row_35_a_reset_world_of_a_killed_client(
    race: Server, player: Connection, count: int, seen: Seen
) -> None:
    """Row 35: a ResetWorld waits for agents that never step; its slot is free within 2 s."""
    for _ in range(count):
        kill_a_client(_wait_in_reset_world, race, agents=2)
        # Every slot is free again but those of the two players.
        assert settles(lambda: _has_slots(race, SLOTS - 2), FREED_SECONDS)
    seen(kills=count)
    # The agents learn of the reset in their next step.
    assert player.send(STILL).state == dm_env_rpc_pb2.INTERRUPTED


def _has_slots(server: Server, count: int) -> bool:
    connections = [connect(server.address) for _ in range(count)]
    try:
        for connection in connections:
            connection.send(dm_env_rpc_pb2.LeaveWorldRequest())
    except ConnectionError:
        return False
    finally:
        for connection in connections:
            connection.close()
    return True


@counts(5, 50)  # on each of two transports
def test_row_35_a_step_in_lock_step_of_a_killed_client(count: int, seen: Seen) -> None:
    """Row 35: a step waits for players that never join; the agent's place is free within 2 s."""
    with serve(Race(players=2), max_connections=SLOTS) as server:
        for _ in range(count):
            kill_a_client(_wait_in_step, server, agents=1)
            assert settles(lambda: server.agent_count == 0, FREED_SECONDS)
        assert _has_slots(server, SLOTS)
        assert server.errors == []
    seen(kills=count)


@counts(5, 50)  # on each of two transports
def test_row_35_a_reset_world_of_a_world_with_one_agent(count: int, seen: Seen) -> None:
    """Row 35: as in a Game, in the world of a dm_env environment."""
    with serve(Catch, max_connections=SLOTS) as server, connect(server.address) as agent:
        world = agent.send(dm_env_rpc_pb2.CreateWorldRequest()).world_name
        agent.send(Join(world_name=world))
        for _ in range(count):
            assert agent.send(Step()).state == dm_env_rpc_pb2.RUNNING
            kill_a_client(_wait_in_reset_world, server, world, agents=1)
            assert settles(lambda: _has_slots(server, SLOTS - 1), FREED_SECONDS)
            # What the killed client asked for is done all the same.
            assert agent.send(STILL).state == dm_env_rpc_pb2.INTERRUPTED
        assert server.errors == []
    seen(kills=count)
