"""Row 57: servers of batches, and worker processes of them, are killed while rows step."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dm_env_rpc_client import BatchedEnvironment, EnvironmentsFailedError, Restart
from tests.reliability.processes.ledgers import Entry, length_of
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support.ports import HeldPort

TRANSPORTS = ["http2"]

pytestmark = [
    pytest.mark.row(57),
    pytest.mark.filterwarnings("ignore::dm_env_rpc_client.RestartWarning"),
]

ROOT = Path(__file__).parents[3]
ROWS = 6
PROCESSES = 2
HALVES = [[0, 1, 2], [3, 4, 5]]
READY_SECONDS = 60.0
RESTART = Restart(attempts=200, backoff=0.1, max_backoff=0.5)
LAST_STEPS = 30
NOTHING = np.zeros(ROWS, bool)


class Engine:
    """A server in another process, which can be killed and is started at the same address."""

    def __init__(self) -> None:
        # Its clients look for it there while it is started again.
        self._port = HeldPort()
        self.address = self._port.address
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "dm_env_rpc_client", "serve",
                "tests.reliability.processes.ledgers:Ledger", "--no-try", "--json",
                "--address", self.address, "--processes", str(PROCESSES),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said, "the server has not started"
        assert json.loads(said)["address"] == self.address

    def workers(self) -> list[int]:
        """The processes that have worlds, those that were started last at the end."""
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        found = []
        for child in map(int, children):
            with contextlib.suppress(OSError):  # It has ended meanwhile.
                if b"resource_tracker" not in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(child)
        return found

    def kill(self) -> None:
        """Kills the server; its worker processes end when they notice."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def close(self) -> None:
        """Gives its port back."""
        self._port.close()


@pytest.fixture
def engine() -> Iterator[Engine]:
    running = Engine()
    try:
        yield running
    finally:
        running.kill()
        running.close()


class Book:
    """Holds what rows answer against what they have to.

    Attributes:
      losses: by row, how often its world was lost in the middle of a sequence.
      failures: by row, how often its process was lost, and its world has gone on.
      lives: the life of each row.
    """

    def __init__(self) -> None:
        self.losses = [0] * ROWS
        self.failures = [0] * ROWS
        self.lives = [0] * ROWS
        self.steps = 0
        self._last: list[Entry | None] = [None] * ROWS
        self._has_ended = [True] * ROWS
        # The rows whose world was lost, until they have begun again.
        self._is_lost = [False] * ROWS
        # The rows that have failed, until they have begun again.
        self._has_failed = [False] * ROWS

    def take(
        self, said: npt.NDArray[Any], entries: Any, rewards: Any, ended: Any, lost: Any
    ) -> None:
        """Takes a step of all rows.

        Args:
          said: the actions, [N]; -1 for a reset.
          entries: the observations, [N, 5].
          rewards: [N].
          ended: whether the sequence of a row has ended with this step, [N].
          lost: whether that is because its world was lost, [N].
        """
        self.steps += 1
        for row in range(ROWS):
            entry = Entry(*map(int, entries[row]))
            last = self._last[row]
            where = (row, entry, last, bool(ended[row]), bool(lost[row]))
            assert entry.env == row, where
            if self._has_failed[row] and not lost[row]:
                # Another life, which begins at once, whatever the row was doing.
                assert last is not None
                assert entry.life != last.life, where
                assert entry[2:] == (1, 0, -1), where
                assert (rewards[row], bool(ended[row])) == (0, False), where
                self._has_failed[row] = False
            elif lost[row]:
                assert ended[row], where
                assert not self._has_ended[row], where
                assert entry == last, where
                self.losses[row] += 1
                self._is_lost[row] = True
            elif self._has_ended[row]:
                assert (entry.step, entry.heard, rewards[row]) == (0, -1, 0), where
                assert not ended[row], where
                if last is None or entry.life != last.life:
                    # The new world begins all rows together. Those that were lost in the middle of
                    # a sequence are LAST meanwhile, and begin once more in the next step.
                    begun_unseen = self._is_lost[row] and entry.episode == 2
                    assert entry.episode == 1 or begun_unseen, where
                else:
                    assert entry.episode == last.episode + 1, where
                    assert not self._is_lost[row], where
                self._is_lost[row] = False
            else:
                assert last is not None
                assert entry == (
                    row, last.life, last.episode, last.step + 1, int(said[row])
                ), where  # fmt: skip
                assert rewards[row] == entry.step, where
                assert ended[row] == (entry.step == length_of(row, entry.episode)), where
            self._has_ended[row] = bool(ended[row])
            self._last[row] = entry
            self.lives[row] = entry.life

    def fail(self, said: npt.NDArray[Any], failed: Mapping[int, BaseException]) -> None:
        """Takes a step in which some rows have failed, and of which nobody sees the others.

        Args:
          said: the actions, [N].
          failed: the rows, and why.
        """
        assert all("the process of this row has ended" in str(why) for why in failed.values())
        self.steps += 1
        for row in range(ROWS):
            last = self._last[row]
            assert last is not None
            if row in failed:
                self.failures[row] += 1
                self._has_failed[row] = True
            elif self._has_ended[row]:
                self._last[row] = last._replace(episode=last.episode + 1, step=0, heard=-1)
                self._has_ended[row] = False
            else:
                self._last[row] = after = last._replace(step=last.step + 1, heard=int(said[row]))
                self._has_ended[row] = after.step == length_of(row, after.episode)


class Killer(threading.Thread):
    """Kills the server or one of its workers, at random moments between and within steps.

    Args:
      engine: the server.
      book: of the rows that are stepped meanwhile.
      count: how often.

    Attributes:
      hit: for each kill the rows whose world was lost.
    """

    def __init__(self, engine: Engine, book: Book, count: int):
        super().__init__(daemon=True)
        self._engine = engine
        self._book = book
        self._count = count
        self._random = random.Random(count)
        self.hit: list[list[int]] = []
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self._given_up = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            for number in range(self._count):
                self._settle()
                before = list(self._book.lives)
                if number % 2:
                    self._engine.kill()
                    self._engine.start()
                else:
                    os.kill(self._random.choice(self._engine.workers()), signal.SIGKILL)
                while self._book.lives == before:
                    self._wait()
                self._settle()
                pairs = zip(before, self._book.lives, strict=True)
                self.hit.append([row for row, (a, b) in enumerate(pairs) if a != b])
        except BaseException as error:
            self.error = error
        finally:
            self.ended.set()

    def _settle(self) -> None:
        """Waits until all rows have taken some steps, and then for any moment."""
        until = self._book.steps + 15 + self._random.randrange(10)
        while self._book.steps < until:
            self._wait()
        time.sleep(self._random.random() / 100)  # A moment is what is tried.

    def _wait(self) -> None:
        if self._given_up.wait(0.001):
            raise RuntimeError("the test has failed")

    def close(self) -> None:
        self._given_up.set()
        self.join(READY_SECONDS)


def steps(env: BatchedEnvironment, said: Any) -> tuple[Any, ...]:
    """Takes a step; returns what `Book.take` takes."""
    timestep = env.step({"say": said})
    ended = timestep.last()
    # One that ends by itself has discount 0.
    lost = ended & (timestep.discount == 1)
    return timestep.observation["entry"], np.where(lost, 0, timestep.reward), ended, lost


@counts(4, 100)
@pytest.mark.timeout(300)
def test_no_row_of_a_batched_environment_is_wrong(engine: Engine, count: int, seen: Seen) -> None:
    """All rows step meanwhile; what was hit is compared with what was lost."""
    book = Book()
    said, left = np.arange(ROWS), LAST_STEPS
    with BatchedEnvironment(
        engine.address, ROWS, lambda index: {"index": index}, restart=RESTART, request_timeout=30
    ) as env:
        first = env.reset()
        book.take(NOTHING, first.observation["entry"], first.reward, first.last(), NOTHING)
        killer = Killer(engine, book, count)
        try:
            while not killer.ended.is_set() or (left := left - 1) > 0:
                said = said + ROWS
                try:
                    taken = steps(env, said)
                except EnvironmentsFailedError as error:
                    book.fail(said, error.failures)
                else:
                    book.take(said, *taken)
        finally:
            killer.close()
        restarts = env.restarts
    assert killer.error is None, killer.error
    everything = list(range(ROWS))
    assert len(killer.hit) == count
    for number, hit in enumerate(killer.hit):
        # A worker has half of the rows, the server has all.
        assert hit == everything if number % 2 else hit in HALVES, (number, hit)
    assert book.failures == [sum(row in hit for hit in killer.hit[::2]) for row in everything]
    lost = count // 2 * ROWS
    assert restarts == lost
    # A row whose sequence had just ended begins the next one in the new world.
    assert lost / 2 < sum(book.losses) <= lost
    seen(kills=count, losses=sum(book.losses) + sum(book.failures), wrong=0)
