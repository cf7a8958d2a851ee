"""Row 45: worker processes of a server are killed while clients step their environments."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from dm_env_rpc_client import ConnectionLostError, connect, create_world, destroy_world, join_world
from dm_env_rpc_client.client.connection import Connection
from dm_env_rpc_client.server import Server, serve
from dm_env_rpc_client.server.processes.workers import Workers
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts, is_strict
from tests.support.environments import Echo
from tests.support.scripted import descriptor_count, settles, thread_count, thread_states
from tests.support.stopwatch import Stopwatch

TRANSPORTS = ["http2"]

PROCESSES = 2
CLIENTS = 6
FORWARDED = 2
"""So many of the clients have a world in another process than their connection."""

PAUSE_SECONDS = 0.001
"""Between steps, so that a worker can be started meanwhile on a machine with two cores."""

RETRY_SECONDS = 0.1
MAX_WORLDS = 20

NOTICED_SECONDS = 1.0
REPLACED_SECONDS = 60.0

_ESTABLISHED = "01"


def process_of_connection(connection: Connection, pids: list[int]) -> int:
    """Returns the process that has the server's end of a connection over TCP."""
    local = socket_port(connection)
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _ESTABLISHED and int(fields[2].rpartition(":")[2], 16) == local:
                inodes.add(f"socket:[{fields[9]}]")
    (pid,) = (pid for pid in pids if inodes & _links(pid))
    return pid


def socket_port(connection: Connection) -> int:
    port: int = connection._pipeline._stream._connection._socket.getsockname()[1]  # type: ignore[attr-defined]
    return port


def _links(pid: int) -> set[str]:
    found = set()
    # It may have ended.
    with contextlib.suppress(FileNotFoundError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.add(os.readlink(link))
    return found


def kill(pid: int) -> float:
    """Kills a process, and returns the moment from which its end can be noticed.

    On a busy machine that is when it was last seen to have threads, and with them its sockets; in
    the scorecard's full mode when it was killed.
    """
    os.kill(pid, signal.SIGKILL)
    seen = time.monotonic()

    def has_ended() -> bool:
        nonlocal seen
        now = time.monotonic()
        if thread_states(pid) <= {"Z", "X"}:
            return True
        seen = now
        return False

    assert is_strict() or settles(has_ended)
    return seen


class Client(threading.Thread):
    """Steps an environment; makes another when its connection is lost.

    Args:
      server: the server.
      is_forwarded: whether its world is to be in another process than its connection.

    Attributes:
      pids: the processes that its environment needs at the moment; none while it makes another.
      steps: how many steps have succeeded.
      lost: when connections were lost, what they needed, and with which error.
      failure: any other error, which ends it.
    """

    def __init__(self, server: Server, is_forwarded: bool):
        super().__init__(daemon=True)
        self._server = server
        self._is_forwarded = is_forwarded
        self._is_over = False
        self.pids: frozenset[int] = frozenset()
        self.steps = 0
        self.lost: list[tuple[float, frozenset[int], ConnectionLostError]] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Plays until the end."""
        try:
            while not self._is_over:
                self._play()
        except BaseException as error:
            self.failure = error

    def end(self) -> None:
        """Ends it after its next step."""
        self._is_over = True

    def _play(self) -> None:
        with connect(self._server.address) as connection:
            here = process_of_connection(connection, list(pids_of(self._server).values()))
            world = self._create(connection, here)
            if world is None:
                time.sleep(RETRY_SECONDS)  # The other process is not there yet.
                return
            with join_world(connection, world) as env:
                env.reset()
                self.pids = frozenset((here, self._process_of(world)))
                try:
                    while not self._is_over:
                        env.step({"value": self.steps})
                        self.steps += 1
                        time.sleep(PAUSE_SECONDS)  # How often it steps.
                except ConnectionLostError as error:
                    # What was lost is told last.
                    pids, self.pids = self.pids, frozenset()
                    self.lost.append((time.monotonic(), pids, error))

    def _create(self, connection: Connection, here: int) -> str | None:
        """Returns the name of a new world, which is in another process if it has to be."""
        world = create_world(connection)
        if not self._is_forwarded or self._process_of(world) != here:
            return world
        # Until this process has more worlds than the other. They are destroyed, all but the one:
        # if they stayed, another client might have to make more of its own than it does.
        made = []
        for _ in range(MAX_WORLDS):
            made.append(world)
            world = create_world(connection)
            if self._process_of(world) != here:
                break
        for each in made:
            destroy_world(connection, each)
        return world if self._process_of(world) != here else None

    def _process_of(self, world: str) -> int:
        return pids_of(self._server)[int(world.split("-")[1])]


def workers_of(server: Server) -> Workers:
    assert isinstance(server._serving, Workers)
    return server._serving


def is_complete(server: Server) -> bool:
    """Whether all workers serve."""
    return len(workers_of(server)._board.ready()) == PROCESSES


def pids_of(server: Server) -> dict[int, int]:
    """Returns the processes of the workers, by the serial number that names of worlds hold."""
    return {w.serial: w.pid for w in list(workers_of(server)._workers.values())}


@pytest.mark.row(45)
@counts(2, 50)
def test_workers_that_are_killed_take_their_own_worlds_only(count: int, seen: Seen) -> None:
    threads, descriptors = thread_count(), descriptor_count()
    stopwatch = Stopwatch()
    slowest_error = slowest_replacement = 0.0
    said = set()
    with serve(Echo, processes=PROCESSES, idle_world_seconds=0.1) as server:
        clients = [Client(server, index < FORWARDED) for index in range(CLIENTS)]
        for client in clients:
            client.start()
        for _ in range(count):
            assert settles(lambda: all(c.pids or c.failure for c in clients), REPLACED_SECONDS)
            assert [client.failure for client in clients] == [None] * CLIENTS
            killed = random.choice(list(pids_of(server).values()))
            before = {client: (len(client.lost), client.steps) for client in clients}
            losers = {client for client in clients if killed in client.pids}
            begin = kill(killed)
            for client in clients:
                lost, steps = before[client]
                if client in losers:
                    assert settles(lambda: len(client.lost) > lost)  # noqa: B023  # runs now
                    when, pids, error = client.lost[-1]
                    assert killed in pids
                    slowest_error = max(slowest_error, when - begin)
                    said.add(str(error).replace(server.address, "ADDRESS"))
                else:
                    assert settles(lambda: client.steps > steps + 10)  # noqa: B023
                    assert len(client.lost) == lost
            assert settles(lambda: is_complete(server), REPLACED_SECONDS)
            slowest_replacement = max(slowest_replacement, time.monotonic() - begin)
        assert settles(lambda: all(c.pids or c.failure for c in clients), REPLACED_SECONDS)
        for client in clients:
            client.end()
        for client in clients:
            client.join(20)
        assert [client.failure for client in clients] == [None] * CLIENTS
        assert settles(lambda: (server.world_count, server.agent_count) == (0, 0))
        errors = [str(error) for error in server.errors]
        assert len(errors) == count
        assert all("was ended by SIGKILL" in text for text in errors)
    lost_connections = sum(len(client.lost) for client in clients)
    seen(
        killed_workers=count,
        lost_connections=lost_connections,
        steps_of_others=sum(client.steps for client in clients),
        error_after_s=slowest_error,
        replaced_after_s=slowest_replacement,
    )
    assert lost_connections > 0
    assert all("closed the connection" in text or "has ended" in text for text in said), said
    assert slowest_error < NOTICED_SECONDS + stopwatch.allowance
    assert settles(lambda: thread_count() <= threads + 1, 10)
    # multiprocessing keeps two of its shared memory, and one to what frees it.
    assert settles(lambda: descriptor_count() <= descriptors + 3, 10)
