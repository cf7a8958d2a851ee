"""Stepping an environment in a separate thread, so that the kernel never waits.

The thread makes all of the explorer's calls to the environment and to its properties, in the order
of the requests. During a run, it also takes a step when one is due and no call is pending. Calls
by other threads, such as a call from another cell, are also shown.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import dm_env
import numpy as np

from dm_env_rpc_client.system.locks import make_rlock
from dm_env_rpc_client.tensors.displays.progress import Progress

_log = logging.getLogger(__name__)

Saw = Callable[[Any, dm_env.TimeStep], object]
"""A callback for an action and the resulting TimeStep.

The action is None for a FIRST TimeStep.
"""


class Watch:
    """Reports every `step` and `reset` of an environment, including calls by other code.

    The watch replaces both methods of the environment until `close`. Calls from several threads
    wait for each other. For an environment without a `__dict__`, only calls made through the watch
    itself are reported.

    Args:
      env: the environment.
      saw: called in the thread of each call, while other calls wait.

    Attributes:
      lock: held during a call, and while `saw` is called.
    """

    def __init__(self, env: dm_env.Environment, saw: Saw):
        self.lock = make_rlock()
        self._saw: Saw | None = saw
        self._depth = 0
        self._own = {"step": env.step, "reset": env.reset}
        self._attributes: dict[str, Any] = getattr(env, "__dict__", {})
        self._before = {name: self._attributes.get(name) for name in self._own}
        self._placed = {"step": self.step, "reset": self.reset}
        self._attributes.update(self._placed)

    def step(self, action: Any) -> dm_env.TimeStep:
        """Step the environment."""
        return self._call("step", action, (action,), {})

    def reset(self, *args: Any, **kwargs: Any) -> dm_env.TimeStep:
        """Reset the environment."""
        return self._call("reset", None, args, kwargs)

    def close(self) -> None:
        """Restore the environment's methods and stop the callbacks."""
        with self.lock:
            self._saw = None
        for name, placed in self._placed.items():
            # A wrapper placed over it since then stays, and continues to call it.
            if self._attributes.get(name) == placed:
                before = self._before[name]
                if before is None:
                    del self._attributes[name]
                else:
                    self._attributes[name] = before

    def _call(self, name: str, action: Any, args: Any, kwargs: Any) -> dm_env.TimeStep:
        with self.lock:
            self._depth += 1
            try:
                timestep: dm_env.TimeStep = self._own[name](*args, **kwargs)
            finally:
                self._depth -= 1
            # A reset that steps itself is one call.
            if self._depth == 0 and self._saw is not None:
                self._saw(None if _begins(timestep) else action, timestep)
        return timestep


def _begins(timestep: dm_env.TimeStep) -> bool:
    return bool(np.all(np.asarray(timestep.step_type) == dm_env.StepType.FIRST))


DRAW_SECONDS = 0.05
"""The minimum time between two reports of a run, in seconds."""

BYTES_PER_SECOND = 400_000
"""The maximum rate of reports.

A Jupyter server drops output beyond a million bytes per second.
"""

CLOSE_SECONDS = 1.0
"""The time, in seconds, that `close` waits for a call in progress."""

_CONTINUE = object()
_SEEN = object()


class Stepper:
    """A proxy that calls the environment in a separate thread, so that requests return at once.

    Args:
      env: the environment. Calls from other threads wait for the call in progress.
      choose: receives the last TimeStep and returns the action for the next step of a run. Called
        in the stepper's thread.
      report: shows the progress and returns the number of bytes sent. Called in the
        stepper's thread.
      rate: the maximum number of steps per second of a run.

    Attributes:
      rate: the maximum number of steps per second of a run. It can be changed at any time.
    """

    def __init__(
        self,
        env: dm_env.Environment,
        choose: Callable[[dm_env.TimeStep], Any],
        report: Callable[[Progress], int],
        rate: float = 5.0,
    ):
        self.rate = rate
        self._choose = choose
        self._report = report
        self._progress = Progress()
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._should_run = False
        self._step_due = self._report_due = 0.0
        self._is_unshown = False
        self._watch = Watch(env, self._saw)
        self._thread = threading.Thread(target=self._work, name="explorer", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether a run has been requested and not stopped."""
        return self._should_run

    @property
    def is_busy(self) -> bool:
        """Whether calls are pending."""
        return not self._calls.empty()

    def reset(self) -> None:
        """Request a reset."""
        self.call(self._watch.reset)

    def step(self, choose: Callable[[dm_env.TimeStep], Any]) -> None:
        """Request a step with the action from `choose`, or a reset if the episode has ended."""
        self.call(lambda: self._advance(choose))

    def run(self) -> None:
        """Start a run, which takes steps until `stop`, `close` or an error."""
        self._should_run = True
        self._calls.put(_CONTINUE)

    def stop(self) -> None:
        """Stop a run after the step in progress."""
        self._should_run = False
        self._calls.put(_CONTINUE)

    def call(self, action: Callable[[], object]) -> None:
        """Have the thread call `action`. Exceptions that it raises are shown as errors."""
        self._calls.put(action)

    def show_other(self, timestep: dm_env.TimeStep) -> None:
        """Switch to another running sequence.

        This method must be called within `call`.

        Args:
          timestep: the last TimeStep of that sequence.
        """
        self._progress.begin(timestep)

    def close(self) -> None:
        """End the thread, but keep the environment open.

        A second call does nothing.
        """
        self._should_run = False
        self._watch.close()
        self._calls.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_SECONDS)

    def _work(self) -> None:
        while True:
            due = [self._step_due] if self._should_run else []
            if self._is_unshown:
                due.append(self._report_due)
            try:
                wait = max(min(due) - time.monotonic(), 0.0) if due else None
                call = self._calls.get(timeout=wait)
            except queue.Empty:
                if not self._should_run or self._step_due > time.monotonic():
                    self._show(patient=True)
                    continue
                self._step_due = time.monotonic() + 1 / self.rate
                self._attempt(lambda: self._advance(self._choose))
                self._show(patient=self._should_run)
                continue
            if call is None:
                return
            if call not in (_CONTINUE, _SEEN):
                self._attempt(call)
            self._show(patient=call is _SEEN)

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            action()
            self._progress.error = ""
        except Exception as error:
            # The server, the environment and a policy may raise anything.
            self._should_run = False
            self._progress.error = f"{type(error).__name__}: {error}"

    def _advance(self, choose: Callable[[dm_env.TimeStep], Any]) -> None:
        if self._progress.is_over:
            self._watch.reset()
        else:
            self._watch.step(choose(self._progress.timestep))

    def _saw(self, action: Any, timestep: dm_env.TimeStep) -> None:
        """Record a step or reset by any thread. The caller must hold the lock of the watch."""
        if action is None:
            self._progress.begin(timestep)
        else:
            self._progress.advance(action, timestep)
        if threading.current_thread() is not self._thread:
            self._progress.error = ""
            if not self._is_unshown:
                self._is_unshown = True
                self._calls.put(_SEEN)

    def _show(self, patient: bool = False) -> None:
        now = time.monotonic()
        if patient and now < self._report_due:
            return
        with self._watch.lock:
            self._is_unshown = False
            self._progress.is_running = self._should_run
            progress = self._progress.copy()
        sent = 0
        try:
            sent = self._report(progress)
        except Exception:
            # The page may be closed, for instance; stepping does not depend on it.
            _log.exception("could not show the progress of the environment")
        self._report_due = now + max(DRAW_SECONDS, sent / BYTES_PER_SECOND)
