"""Stepping an environment in a thread of its own, so that the kernel never waits for it.

All calls of the environment, and those of its properties, are made there, one after the
other in the order in which they were asked for. While it runs by itself, it takes a step
whenever one is due and nothing else has been asked for.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import dm_env
import numpy as np

__all__ = ["Progress", "Stepper"]

_log = logging.getLogger(__name__)

MAX_REMEMBERED = 2000
"""Rewards of an episode, and returns of episodes, that are kept for the plots."""

DRAW_SECONDS = 0.05
"""Between two reports of a run, at least."""

BYTES_PER_SECOND = 400_000
"""What reports may send; a Jupyter server cuts off kernels that send more than a million."""

CLOSE_SECONDS = 1.0
"""How long `close` waits for a call that is under way."""

_CONTINUE = object()


@dataclasses.dataclass
class Progress:
    """How far a stepper has come.

    Attributes:
      timestep: the last one; None before the first.
      action: the one that led to it; None after a reset.
      episode: the number of the episode, from 1.
      steps: steps in it.
      episode_return: sum of its rewards. A reward that is an array counts as its sum.
      rewards: its last rewards.
      returns: those of the last episodes that ended.
      is_running: whether it steps by itself.
      error: what went wrong last; "" where nothing did.
    """

    timestep: dm_env.TimeStep | None = None
    action: Any = None
    episode: int = 0
    steps: int = 0
    episode_return: float = 0.0
    rewards: list[float] = dataclasses.field(default_factory=list)
    returns: list[float] = dataclasses.field(default_factory=list)
    is_running: bool = False
    error: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the episode has ended, or none has begun."""
        return self.timestep is None or bool(
            np.all(np.asarray(self.timestep.step_type) == dm_env.StepType.LAST)
        )

    def begin(self, timestep: dm_env.TimeStep) -> None:
        """Takes note of a reset."""
        self.timestep, self.action = timestep, None
        self.episode += 1
        self.steps, self.episode_return = 0, 0.0
        self.rewards.clear()

    def advance(self, action: Any, timestep: dm_env.TimeStep) -> None:
        """Takes note of a step."""
        self.timestep, self.action = timestep, action
        self.steps += 1
        reward = 0.0 if timestep.reward is None else float(np.sum(timestep.reward))
        self.episode_return += reward
        self.rewards.append(reward)
        del self.rewards[:-MAX_REMEMBERED]
        if self.is_over:
            self.returns.append(self.episode_return)
            del self.returns[:-MAX_REMEMBERED]


class Stepper:
    """Makes the calls; every method returns at once.

    Args:
      env: the environment; nobody else steps it meanwhile.
      choose: returns the action of a step that `run` takes, from the last TimeStep.
      report: shows the progress, and returns how many bytes that took. Called in the
        stepper's thread, as `choose` is.

      rate: steps per second while it runs, at most.

    Attributes:
      rate: the same; it can be changed.
    """

    def __init__(
        self,
        env: dm_env.Environment,
        choose: Callable[[dm_env.TimeStep], Any],
        report: Callable[[Progress], int],
        rate: float = 5.0,
    ):
        self.rate = rate
        self._env = env
        self._choose = choose
        self._report = report
        self._progress = Progress()
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._should_run = False
        self._step_due = self._report_due = 0.0
        self._thread = threading.Thread(target=self._work, name="explorer", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether it has been asked to step by itself."""
        return self._should_run

    @property
    def is_busy(self) -> bool:
        """Whether calls wait for their turn."""
        return not self._calls.empty()

    def reset(self) -> None:
        """Begins an episode."""
        self.call(self._begin)

    def step(self, choose: Callable[[dm_env.TimeStep], Any]) -> None:
        """Takes a step with the action that `choose` returns; resets after an episode."""
        self.call(lambda: self._advance(choose))

    def run(self) -> None:
        """Steps until `stop`, an error or `close`."""
        self._should_run = True
        self._calls.put(_CONTINUE)

    def stop(self) -> None:
        """Ends `run`; a step that is under way is the last."""
        self._should_run = False
        self._calls.put(_CONTINUE)

    def call(self, action: Callable[[], object]) -> None:
        """Has something else done with the environment; what it raises is shown as an error."""
        self._calls.put(action)

    def close(self) -> None:
        """Ends the thread; the environment stays open. A second time does nothing."""
        self._should_run = False
        self._calls.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_SECONDS)

    def _work(self) -> None:
        while True:
            wait = max(self._step_due - time.monotonic(), 0.0) if self._should_run else None
            try:
                call = self._calls.get(timeout=wait)
            except queue.Empty:
                self._step_due = time.monotonic() + 1 / self.rate
                self._attempt(lambda: self._advance(self._choose))
                self._show(patient=self._should_run)
                continue
            if call is None:
                return
            if call is not _CONTINUE:
                self._attempt(call)
            self._show()

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            action()
            self._progress.error = ""
        except Exception as error:
            # It may come from anywhere: the server, the environment, a policy.
            self._should_run = False
            self._progress.error = f"{type(error).__name__}: {error}"

    def _begin(self) -> None:
        self._progress.begin(self._env.reset())

    def _advance(self, choose: Callable[[dm_env.TimeStep], Any]) -> None:
        if self._progress.is_over:
            self._begin()
            return
        action = choose(self._progress.timestep)
        self._progress.advance(action, self._env.step(action))

    def _show(self, patient: bool = False) -> None:
        now = time.monotonic()
        if patient and now < self._report_due:
            return
        self._progress.is_running = self._should_run
        sent = 0
        try:
            sent = self._report(self._progress)
        except Exception:
            # The page may be gone, say; the environment can be stepped all the same.
            _log.exception("could not show how far the environment has come")
        self._report_due = now + max(DRAW_SECONDS, sent / BYTES_PER_SECOND)
