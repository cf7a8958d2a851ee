"""The loop of `dm-env-rpc play`: reads keys and steps the environment until the player quits."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dm_env
import numpy as np

from dm_env_rpc_client.cli.playing.bindings import Binding
from dm_env_rpc_client.cli.playing.controls import COMMANDS, TextEntry
from dm_env_rpc_client.cli.playing.keyboard import Keyboard
from dm_env_rpc_client.cli.playing.panel import Panel
from dm_env_rpc_client.cli.playing.screen import Screen, View
from dm_env_rpc_client.errors import DmEnvRpcError
from dm_env_rpc_client.tensors import nesting

__all__ = ["PlayLoop"]

_MOST_SENT = 4
"""The number of controls whose values in the last action are shown."""


class PlayLoop:
    """Plays an environment with the keyboard.

    Without a rate, the loop waits for keys. With a rate, it takes steps in real time, each with
    the keys that were pressed since the step before.

    Args:
      env: the environment.
      title: the first line of the screen.
      bindings: of `--keys`.
      rate: steps per second; None if each step waits for a key.
      screen: to draw on.
      keyboard: to read from.

    Attributes:
      view: the content of the screen.

    Raises:
      UsageError: as `Panel`.
    """

    def __init__(
        self,
        env: dm_env.Environment,
        title: str,
        bindings: Sequence[Binding],
        rate: float | None,
        screen: Screen,
        keyboard: Keyboard,
    ):
        self._env = env
        self._bindings = bindings
        self._action_spec = env.action_spec()
        self.view = View(title, Panel(self._action_spec, bindings), rate)
        self._screen = screen
        self._keyboard = keyboard
        self._next_step = math.inf

    def play(self) -> None:
        """Plays until the player quits.

        Raises:
          HangUp: the terminal was closed.
          Terminated: the process got a signal to end.
          DmEnvRpcError: the server refused the first reset. Later errors are shown.
          Otherwise as `DmEnvAdaptor.step`.
        """
        self._draw()
        self._begin()
        self._schedule()
        while True:
            self._draw()
            for key in self._keyboard.keys(self._seconds_to_next_step()):
                if self.view.typing is not None:
                    self._type(self.view.typing, key)
                elif self._press(key) == "quit":
                    return
            if time.monotonic() >= self._next_step:
                self._try(self._step)

    def _draw(self) -> None:
        size = os.get_terminal_size(sys.stdout.fileno())
        self._screen.draw(self.view, size.columns, size.lines)

    def _seconds_to_next_step(self) -> float | None:
        if self._next_step == math.inf:
            return None
        return max(0.0, self._next_step - time.monotonic())

    def _press(self, key: str) -> str | None:
        """Handles a key; returns its command if it has one."""
        panel = self.view.panel
        command = None if panel.is_by_hand(key) else COMMANDS.get(key)
        if panel.press(key):
            if self.view.rate is None and panel.steps_at_once:
                self._try(self._step)
        elif command == "reset":
            self._try(self._begin)
        elif command == "pause" and self.view.rate is not None:
            self.view.paused = not self.view.paused
            self._schedule()
        elif command in ("next", "last"):
            panel.select(1 if command == "next" else -1)
        elif command == "type":
            texts = [control for control in panel.controls if isinstance(control, TextEntry)]
            chosen = [control for control in texts if control is panel.selected] or texts
            self.view.typing = chosen[0] if chosen else None
        elif key in ("space", "enter"):
            self._try(self._step)
        return command

    def _type(self, entry: TextEntry, key: str) -> None:
        if key in ("enter", "escape"):
            self.view.typing = None
        elif key == "backspace":
            entry.value = entry.value[:-1]
        elif key == "space":
            entry.value += " "
        elif len(key) == 1:
            entry.value += key

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
            self.view.message = ""
        except DmEnvRpcError as error:
            # The connection is still usable, so the player can try something else.
            self.view.message = str(error)
            self.view.paused = True
        self._schedule()
        self._draw()

    def _begin(self) -> None:
        timestep = self._env.reset()
        # A reset may change the specs.
        if self._env.action_spec() != self._action_spec:
            self._action_spec = self._env.action_spec()
            self.view.panel = Panel(self._action_spec, self._bindings)
        self.view.observation_specs = _flat(self._env.observation_spec())
        self._record(timestep)

    def _step(self) -> None:
        panel = self.view.panel
        timestep = self._env.step(panel.action())
        self.view.sent = ", ".join(f"{c.label}={c.value}" for c in panel.controls[:_MOST_SENT])
        panel.go_idle()
        self._record(timestep)

    def _record(self, timestep: dm_env.TimeStep) -> None:
        view = self.view
        view.timestep = timestep
        view.observations = _flat(timestep.observation)
        if timestep.first():
            view.episode += 1
            view.steps = 0
            view.episode_return = 0.0
        else:
            view.steps += 1
            view.total_steps += 1
            # A reward may be an array; its sum is shown.
            view.episode_return += float(np.sum(timestep.reward))

    def _schedule(self) -> None:
        """Sets the time of the next step; none without a rate, in a pause, or after an episode."""
        view = self.view
        over = view.timestep is None or view.timestep.last()
        if view.rate is None or view.paused or over:
            self._next_step = math.inf
        else:
            self._next_step = time.monotonic() + 1 / view.rate


def _flat(structure: Mapping[str, Any]) -> dict[str, Any]:
    return nesting.flatten_dict(structure, nesting.SEPARATOR, strict=False)
