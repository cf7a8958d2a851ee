"""Rows 27, 35 and 39: clients that vanish, or are killed, also while the server waits for them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe
from typing import Any

import numpy as np
import pytest
from google.rpc import code_pb2

from dm_env_rpc_client import (
    DmEnvRpcError,
    connect,
    create_and_join_world,
    create_world,
    destroy_world,
    dm_env_rpc_pb2,
    join_world,
    make,
    pack_tensor,
)
from dm_env_rpc_client.client.connection import Connection
from dm_env_rpc_client.server import Catch, Race, Server, serve
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support import forks
from tests.support.both_transports import forced, obey
from tests.support.environments import Echo
from tests.support.scripted import settles, thread_count
from tests.support.stopwatch import Stopwatch

FREED_SECONDS = 2.0
SLOTS = 4

Join = dm_env_rpc_pb2.JoinWorldRequest
ResetWorld = dm_env_rpc_pb2.ResetWorldRequest
Step = dm_env_rpc_pb2.StepRequest
STILL = Step(actions={1: pack_tensor(1, np.int32)})


def _wait(address: str, world: str, steps: bool, transport: str, told: Pipe) -> None:
    """Waits in a ResetWorld, or in the first step of an agent."""
    obey(transport)
    connection = connect(address)
    if steps:
        connection.send(Join(world_name=world))
    connection.start(Step() if steps else ResetWorld(world_name=world))
    told.send("sent")
    told.recv()


def kill_a_client(server: Server, world: str = "", *, agents: int, steps: bool = False) -> None:
    """Starts a client in a process of its own, and kills it when the server waits for it."""
    with forks.child(_wait, server.address, world, steps, forced()) as (_, pipe):
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


@pytest.mark.row(35)
@counts(5, 50)  # on each of two transports
def test_row_35_a_reset_world_of_a_killed_client(
    race: Server, player: Connection, count: int, seen: Seen
) -> None:
    """Row 35: a ResetWorld waits for agents that never step; its slot is free within 2 s."""
    for _ in range(count):
        kill_a_client(race, agents=2)
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


@pytest.mark.row(35)
@counts(5, 50)  # on each of two transports
def test_row_35_a_step_in_lock_step_of_a_killed_client(count: int, seen: Seen) -> None:
    """Row 35: a step waits for players that never join; the agent's place is free within 2 s."""
    with serve(Race(players=2), max_connections=SLOTS) as server:
        for _ in range(count):
            kill_a_client(server, agents=1, steps=True)
            assert settles(lambda: server.agent_count == 0, FREED_SECONDS)
        assert _has_slots(server, SLOTS)
        assert server.errors == []
    seen(kills=count)


@pytest.mark.row(35)
@counts(5, 50)  # on each of two transports
def test_row_35_a_reset_world_of_a_world_with_one_agent(count: int, seen: Seen) -> None:
    """Row 35: as in a Game, in the world of a dm_env environment."""
    with serve(Catch, max_connections=SLOTS) as server, connect(server.address) as agent:
        world = agent.send(dm_env_rpc_pb2.CreateWorldRequest()).world_name
        agent.send(Join(world_name=world))
        for _ in range(count):
            assert agent.send(Step()).state == dm_env_rpc_pb2.RUNNING
            kill_a_client(server, world, agents=1)
            assert settles(lambda: _has_slots(server, SLOTS - 1), FREED_SECONDS)
            # What the killed client asked for is done all the same.
            assert agent.send(STILL).state == dm_env_rpc_pb2.INTERRUPTED
        assert server.errors == []
    seen(kills=count)


PLACES = 10


def be_killed(address: str, transport: Any, number: int, told: Pipe) -> None:
    """A client that is idle, steps, or has requests pending until the end."""
    connection = connect(address, transport=transport)
    env, name = create_and_join_world(connection, {}, {})
    env.reset()
    told.send(name)
    while True:
        if number % 3 == 0:
            time.sleep(60)  # Until it is killed.
        elif number % 3 == 1:
            env.step({"value": 1})
        else:
            for future in [env.step_async({"value": 1}) for _ in range(32)]:
                future.result()


@pytest.mark.row(27)
@counts(PLACES * 2, 500)
def test_worlds_and_places_of_killed_clients_are_free_soon(
    count: int, seen: Seen, transport: str
) -> None:
    slowest, reused = 0.0, 0
    with serve(Echo, max_connections=PLACES) as server:
        for first in range(0, count, PLACES):
            with contextlib.ExitStack() as stack:
                clients = [
                    stack.enter_context(forks.child(be_killed, server.address, transport, number))
                    for number in range(first, first + PLACES)
                ]
                names = [pipe.recv() for _, pipe in clients]
                assert server.agent_count == server.world_count == PLACES
                # Not one after the other, as their contexts would: that this process gets its turn
                # beside the clients that go on is not what is measured.
                for pid, _ in clients:
                    os.kill(pid, signal.SIGKILL)
                killed = Stopwatch()
                assert settles(lambda: server.agent_count == 0, FREED_SECONDS)
                slowest = max(slowest, killed.net)
            assert settles(lambda: _has_slots(server, 1), FREED_SECONDS)
            with connect(server.address) as connection:
                for name in names:
                    with join_world(connection, name) as env:
                        reused += env.reset().first()
                    destroy_world(connection, name)
            assert settles(lambda: server.agent_count == server.world_count == 0)
        assert server.errors == []
    seen(killed_clients=count, worlds_joined_again=reused, released_after_s=slowest)
    assert reused == count
    assert slowest < FREED_SECONDS


# How many clients, against a limit of how many worlds, with a grace of how many seconds.
SCALES = [
    pytest.param(100, 25, 0.2, id="twentieth"),
    pytest.param(2000, 100, 1.0, id="whole", marks=pytest.mark.soak),
]


def _vanish(connection: Connection) -> None:
    """Ends a connection as the kernel does for a process that was killed."""
    connection._stream.abort()
    connection.close()


def _create_and_vanish(server: Server, joins: bool) -> bool:
    """Returns whether there was room for one more world."""
    connection = connect(server.address)
    try:
        world = create_world(connection)
        if joins:
            join_world(connection, world).reset()
        return True
    except DmEnvRpcError as error:
        if error.code != code_pb2.RESOURCE_EXHAUSTED:
            raise
        return False
    finally:
        _vanish(connection)


@pytest.mark.row(39)
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("count", "limit", "grace"), SCALES)
def test_row_39_worlds_of_clients_that_vanish(
    count: int, limit: int, grace: float, seen: Seen
) -> None:
    """Row 39: worlds end after the grace; the clients after that are served."""
    with serve(Catch, max_worlds=limit, idle_world_seconds=grace) as server:
        threads = thread_count()
        made = refused = most = 0
        begun = time.monotonic()
        while made < count:
            if _create_and_vanish(server, joins=bool(made % 2)):
                made += 1
            else:
                refused += 1
                # Within the grace and what closing takes, there is room again.
                assert settles(lambda: server.world_count < limit, 10 * grace)
            most = max(most, server.world_count)
        seen(
            clients_that_vanished=made,
            refusals=refused,
            worlds=float(most),
            all_in_s=time.monotonic() - begun,
        )
        assert most <= limit
        assert settles(lambda: (server.world_count, server.agent_count) == (0, 0))
        with make(server.address) as env:
            assert env.reset().first()
        assert settles(lambda: thread_count() <= threads)
        assert server.errors == []
