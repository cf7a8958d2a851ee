"""Row 27: clients are killed. Their worlds are free soon, and others get their places."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from multiprocessing.connection import Connection as Pipe
from typing import Any

import pytest

from dm_env_rpc_client import (
    ConnectionLostError,
    connect,
    create_and_join_world,
    destroy_world,
    join_world,
    leave_world,
)
from dm_env_rpc_client.server import serve
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support import forks
from tests.support.environments import Echo
from tests.support.scripted import settles
from tests.support.stopwatch import Stopwatch

PLACES = 10

RELEASED_SECONDS = 2.0


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


def has_a_place(address: str) -> bool:
    """Whether a client is served; it is refused as long as others have all places."""
    try:
        with connect(address) as connection:
            leave_world(connection)
    except ConnectionLostError as error:
        return error.code != "RESOURCE_EXHAUSTED"
    return True


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
                assert settles(lambda: server.agent_count == 0, RELEASED_SECONDS)
                slowest = max(slowest, killed.net)
            assert settles(lambda: has_a_place(server.address), RELEASED_SECONDS)
            with connect(server.address) as connection:
                for name in names:
                    with join_world(connection, name) as env:
                        reused += env.reset().first()
                    destroy_world(connection, name)
            assert settles(lambda: server.agent_count == server.world_count == 0)
        assert server.errors == []
    seen(killed_clients=count, worlds_joined_again=reused, released_after_s=slowest)
    assert reused == count
    assert slowest < RELEASED_SECONDS
