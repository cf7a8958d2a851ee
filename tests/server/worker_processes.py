"""The worker processes of a server, as the tests look at them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dm_env_rpc_client import Connection, DmEnvAdaptor, connect, create_world, destroy_world
from dm_env_rpc_client.server import Server
from dm_env_rpc_client.server.processes.workers import Workers
from tests.launch.processes import is_alive
from tests.support.scripted import settles

START_SECONDS = 60.0


def pid_of(env: DmEnvAdaptor) -> int:
    """The process that an environment is in."""
    return int(env.reset().observation["pid"])


def workers_of(server: Server) -> Workers:
    assert isinstance(server._serving, Workers)
    return server._serving


def processes_of(server: Server) -> list[int]:
    """The process ids of the workers."""
    return [worker.pid for worker in workers_of(server)._workers.values()]


def index_of(server: Server, pid: int) -> int:
    """The place of a worker on the board."""
    (index,) = (i for i, worker in workers_of(server)._workers.items() if worker.pid == pid)
    return index


def have_ended(pids: list[int]) -> bool:
    return not any(is_alive(pid) for pid in pids)


@contextlib.contextmanager
def elsewhere(server: Server, environment: str = "where") -> Iterator[tuple[Connection, str]]:
    """A connection, and the name of a world that is in the other process."""
    with connect(server.address) as mine, connect(server.address) as other:
        # On connections without worlds the first is made where the connection is.
        first, name = (
            create_world(connection, {"environment": environment}) for connection in (mine, other)
        )
        assert first.split("-")[1] != name.split("-")[1]
        destroy_world(mine, first)
        yield mine, name
        # A stream that ended without LeaveWorld is told to the other process, which takes a moment.
        assert settles(lambda: server.agent_count == 0)
        destroy_world(mine, name)
