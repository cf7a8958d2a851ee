"""The worker processes of a server, as the tests look at them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dm_env_rpc_client import Connection, DmEnvAdaptor, connect, create_world, destroy_world
from dm_env_rpc_client.server import Server
from dm_env_rpc_client.server.processes.worker_handle import WorkerProcess
from dm_env_rpc_client.server.processes.worker_pool import Workers
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


def worker_with(server: Server, pid: int) -> WorkerProcess:
    """The worker in a process."""
    (worker,) = (each for each in workers_of(server)._workers.values() if each.pid == pid)
    return worker


def process_with(server: Server, name: str) -> int:
    """The process in which a world is."""
    share = workers_of(server).of(name)
    (pid,) = (each.pid for each in workers_of(server)._workers.values() if each.share is share)
    return pid


def are_complete(server: Server) -> bool:
    """Whether each worker serves."""
    return all(worker.is_able for worker in list(workers_of(server)._workers.values()))


def have_ended(pids: list[int]) -> bool:
    return not any(is_alive(pid) for pid in pids)


@contextlib.contextmanager
def elsewhere(server: Server, environment: str = "where") -> Iterator[tuple[Connection, str]]:
    """A connection, and the name of a world that is not where the connection sends the rest."""
    with connect(server.address) as connection:
        first, name = (create_world(connection, {"environment": environment}) for _ in range(2))
        of = workers_of(server).of
        assert of(first) is not of(name)
        destroy_world(connection, first)
        yield connection, name
        # A stream that ended without LeaveWorld is told to the worker, which takes a moment.
        assert settles(lambda: server.agent_count == 0)
        destroy_world(connection, name)
