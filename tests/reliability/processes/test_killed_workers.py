"""Row 45: worker processes of a server are killed while clients step their environments."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import pytest

from dm_env_rpc_client import ConnectionLostError, connect, create_world, join_world
from dm_env_rpc_client.server import Server, serve
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts, is_strict
from tests.server.worker_processes import are_complete, process_with, processes_of
from tests.support.environments import Echo
from tests.support.scripted import descriptor_count, settles, thread_count, thread_states
from tests.support.stopwatch import Stopwatch

TRANSPORTS = ["http2"]

PROCESSES = 2
CLIENTS = 6
PAUSE_SECONDS = 0.001
"""Between steps, so that a worker can be started meanwhile on a machine with two cores."""

NOTICED_SECONDS = 1.0
REPLACED_SECONDS = 60.0


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

    Attributes:
      pid: the process that its environment is in at the moment; 0 while it makes another.
      steps: how many steps have succeeded.
      lost: when connections were lost, in which process the environment was, and the error.
      failure: any other error, which ends it.
    """

    def __init__(self, server: Server):
        super().__init__(daemon=True)
        self._server = server
        self._is_over = False
        self.pid = 0
        self.steps = 0
        self.lost: list[tuple[float, int, ConnectionLostError]] = []
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
            world = create_world(connection)
            with join_world(connection, world) as env:
                pid = process_with(self._server, world)
                env.reset()
                self.pid = pid
                try:
                    while not self._is_over:
                        env.step({"value": self.steps})
                        self.steps += 1
                        time.sleep(PAUSE_SECONDS)  # How often it steps.
                except ConnectionLostError as error:
                    # What was lost is told last.
                    self.pid = 0
                    self.lost.append((time.monotonic(), pid, error))


@pytest.mark.row(45)
@counts(2, 50)
def test_workers_that_are_killed_take_their_own_worlds_only(count: int, seen: Seen) -> None:
    threads, descriptors = thread_count(), descriptor_count()
    stopwatch = Stopwatch()
    slowest_error = slowest_replacement = 0.0
    said = set()
    with serve(Echo, processes=PROCESSES, idle_world_seconds=0.1) as server:
        clients = [Client(server) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        for _ in range(count):
            assert settles(lambda: all(c.pid or c.failure for c in clients), REPLACED_SECONDS)
            assert [client.failure for client in clients] == [None] * CLIENTS
            killed = random.choice(processes_of(server))
            before = {client: (len(client.lost), client.steps) for client in clients}
            losers = {client for client in clients if killed == client.pid}
            begin = kill(killed)
            for client in clients:
                lost, steps = before[client]
                if client in losers:
                    assert settles(lambda: len(client.lost) > lost)  # noqa: B023  # runs now
                    when, pid, error = client.lost[-1]
                    assert killed == pid
                    slowest_error = max(slowest_error, when - begin)
                    said.add(str(error).replace(server.address, "ADDRESS"))
                else:
                    assert settles(lambda: client.steps > steps + 10)  # noqa: B023
                    assert len(client.lost) == lost
            assert settles(lambda: are_complete(server), REPLACED_SECONDS)
            slowest_replacement = max(slowest_replacement, time.monotonic() - begin)
        assert settles(lambda: all(c.pid or c.failure for c in clients), REPLACED_SECONDS)
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
    assert all("stream's world has ended" in text for text in said), said
    assert slowest_error < NOTICED_SECONDS + stopwatch.allowance
    assert settles(lambda: thread_count() <= threads + 1, 10)
    # multiprocessing keeps two of its shared memory, and one to what frees it.
    assert settles(lambda: descriptor_count() <= descriptors + 3, 10)
