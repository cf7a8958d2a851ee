"""Row 39: clients that create worlds and vanish, against a limit of worlds."""

from __future__ import annotations

import time

import pytest
from google.rpc import code_pb2

from dm_env_rpc_client import DmEnvRpcError, connect, create_world, join_world, make
from dm_env_rpc_client.client.connection import Connection
from dm_env_rpc_client.server import Catch, Server, serve
from tests.reliability.recording import Seen
from tests.support.scripted import settles, thread_count

pytestmark = pytest.mark.row(39)

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
