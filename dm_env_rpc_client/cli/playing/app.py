"""The application of `dm-env-rpc play`: shows the game, and reads keys."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding as KeyBinding
from textual.binding import BindingType
from textual.containers import Container, VerticalScroll

from dm_env_rpc_client.cli.playing.controls import TextEntry, flag
from dm_env_rpc_client.cli.playing.panel import Binding, Panel
from dm_env_rpc_client.cli.playing.pictures import picture_for
from dm_env_rpc_client.cli.playing.player import Player
from dm_env_rpc_client.cli.playing.view import Gallery, Words, shows_images
from dm_env_rpc_client.errors import DmEnvRpcError
from dm_env_rpc_client.plain_text import one_line
from dm_env_rpc_client.tensors.displays.values import in_short

_MOST_SENT = 4
"""The number of actions whose last values are shown."""

_MOST_FLAGS = 32
_MOST_PENDING = 8
"""Further steps that keys ask for are left out, so that a held key leaves no backlog."""

_WAITING_SECONDS = 0.3
"""After which the status says what is waited for."""

_NARROW = 70
"""The least columns for which actions and observations are beside the picture."""

_BOLD, _DIM = Style(bold=True), Style(dim=True)


class PlayApp(App[BaseException]):
    """Plays an environment with the keyboard.

    Without a rate, steps are taken when keys ask for them; with a rate, in real time, each with
    the keys that were pressed since the step before. Its result is the error that ended it, None
    if the player quit.

    Args:
      player: the environment.
      title: the address of the server.
      bindings: of `--keys`.
      rate: steps per second; None if each step waits for a key.

    Raises:
      UsageError: as `Panel`.
    """

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        KeyBinding("ctrl+c", "interrupt", priority=True),
        KeyBinding("ctrl+z", "suspend_process", priority=True),
    ]
    CSS = """
    #status { height: auto; }
    #body { height: 1fr; layout: horizontal; }
    Gallery { width: 1fr; }
    #side { width: 36%; min-width: 38; max-width: 64; padding-left: 1; }
    #side.alone { width: 1fr; max-width: 100%; padding: 0; }
    #observations { height: auto; margin-bottom: 1; }
    #controls { height: auto; }
    #message { height: auto; max-height: 4; color: $text-error; }
    #keys { height: 1; color: $text-muted; }
    .narrow #body { layout: vertical; }
    .narrow Gallery { height: 1fr; }
    .narrow #side { width: 100%; max-width: 100%; height: auto; max-height: 60%; padding: 0; }
    """

    def __init__(self, player: Player, title: str, bindings: Sequence[Binding], rate: float | None):
        super().__init__()
        self.title = title
        self.player = player
        self._bindings_by_hand = bindings
        self._rate = rate
        self._panel = self._make_panel()
        self._typing: TextEntry | None = None
        self._is_paused = self._is_ending = False
        self._message = ""
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._step_due: float | None = None
        self._busy_since: float | None = None
        self._pending: asyncio.Queue[Callable[[], None]] = asyncio.Queue()

    def compose(self) -> ComposeResult:
        # Kept, because they cannot be found any more while the application ends.
        self._status, self._observations, self._controls, self._shown_message, self._keys = (
            Words(id=name, markup=False)
            for name in ("status", "observations", "controls", "message", "keys")
        )
        self._gallery = Gallery(shows_images())
        self._side = VerticalScroll(id="side", can_focus=False)
        yield self._status
        with Container(id="body"):
            yield self._gallery
            with self._side:
                yield self._observations
                yield self._controls
        yield self._shown_message
        yield self._keys

    async def on_mount(self) -> None:
        """Begins the first episode."""
        self._own_loop = asyncio.get_running_loop()
        await self._show_observations()
        self._show_controls()
        self.set_interval(_WAITING_SECONDS, self._show_status)
        self.run_worker(self._play(), exit_on_error=False)

    def on_resize(self, event: events.Resize) -> None:
        """Puts actions and observations below the picture if the terminal is narrow."""
        self.screen.set_class(event.size.width < _NARROW, "narrow")

    async def on_event(self, event: events.Event) -> None:
        """Takes keys before Textual uses them, for instance tab to move the focus."""
        if isinstance(event, events.Key) and event.key not in ("ctrl+c", "ctrl+q", "ctrl+z"):
            self._press(_name_of(event))
        elif isinstance(event, events.Paste) and self._typing is not None:
            self._typing.value += one_line(event.text)
        else:
            await super().on_event(event)
            return
        self._show_controls()

    def action_interrupt(self) -> None:
        """Ends the game as Ctrl-C ends other commands."""
        self._end(KeyboardInterrupt())

    async def action_quit(self) -> None:
        """Ends the game."""
        self._end(None)

    def end_soon(self, error: BaseException) -> None:
        """Ends the application with an error; for signal handlers."""
        if self._own_loop is None:
            raise error
        self._own_loop.call_soon_threadsafe(self._end, error)

    def _end(self, error: BaseException | None) -> None:
        self._is_ending = True
        if self._busy_since is not None:
            # Closing waits for the server for a moment.
            threading.Thread(target=self.player.quit).start()
        self.exit(error)

    async def _play(self) -> None:
        """Takes the steps that keys ask for and those of the clock, until the application ends."""
        try:
            await self._call(self.player.begin)
            while True:
                with self.batch_update():
                    await self._show_observations()
                    self._show_controls()
                await self._attempt(await self._next())
        except Exception as error:
            if not self._is_ending:
                self.exit(error)

    async def _next(self) -> Callable[[], None]:
        """Waits for the next call of the environment, which may be a step of the clock."""
        wait = None
        if self._rate is None or self._is_paused or self.player.progress.is_over:
            self._step_due = None
        else:
            now = time.monotonic()
            self._step_due = max(now, (self._step_due or now) + 1 / self._rate)
            wait = self._step_due - now
        try:
            return await asyncio.wait_for(self._pending.get(), wait)
        except asyncio.TimeoutError:
            return self._prepare_step()

    async def _attempt(self, call: Callable[[], None]) -> None:
        try:
            await self._call(call)
            self._message = ""
        except DmEnvRpcError as error:
            # The connection is still usable, so the player can try something else.
            self._message = one_line(str(error))
            self._is_paused = True
            self._forget_pending()

    async def _call(self, call: Callable[[], None]) -> None:
        self._busy_since = time.monotonic()
        try:
            await asyncio.to_thread(call)
        finally:
            self._busy_since = None
        # A reset may change the specs.
        if self.player.action_spec != self._panel.action_spec:
            self._panel = self._make_panel()
            self._forget_pending()

    def _make_panel(self) -> Panel:
        return Panel(self.player.action_spec, self._bindings_by_hand)

    def _forget_pending(self) -> None:
        while not self._pending.empty():
            self._pending.get_nowait()

    def _prepare_step(self) -> Callable[[], None]:
        """Returns a step with the values that the controls have now."""
        action = self._panel.action()
        self._panel.go_idle()
        return functools.partial(self.player.step, action)

    def _ask_for(self, call: Callable[[], None]) -> None:
        if self._pending.qsize() < _MOST_PENDING:
            self._pending.put_nowait(call)

    def _press(self, key: str) -> None:
        panel = self._panel
        if self._typing is not None:
            self._type(self._typing, key)
        elif panel.press(key):
            if self._rate is None and panel.steps_at_once:
                self._ask_for(self._prepare_step())
        elif key == "q":
            self._end(None)
        elif key == "r":
            self._ask_for(self.player.begin)
        elif key == "p" and self._rate is not None:
            self._is_paused = not self._is_paused
            self._ask_for(lambda: None)
        elif key in ("tab", "backtab"):
            panel.select(1 if key == "tab" else -1)
        elif key == "t":
            texts = [control for control in panel.controls if isinstance(control, TextEntry)]
            chosen = [control for control in texts if control is panel.selected] or texts
            self._typing = chosen[0] if chosen else None
        elif key in ("space", "enter"):
            self._ask_for(self._prepare_step())

    def _type(self, entry: TextEntry, key: str) -> None:
        if key in ("enter", "escape"):
            self._typing = None
        elif key == "backspace":
            entry.value = entry.value[:-1]
        elif key == "space":
            entry.value += " "
        elif len(key) == 1:
            entry.value += key

    async def _show_observations(self) -> None:
        player = self.player
        texts, pictures = Text(), {}
        frame = None if player.frame is None else picture_for(player.frame)
        if frame is not None:
            pictures["rendered"] = frame
        for name, value in player.observations.items():
            picture = picture_for(value, player.observation_specs[name])
            if picture is None:
                texts.append(f"{one_line(name)} ", _DIM).append(f"{describe(value)}\n")
            else:
                pictures[name] = picture
        texts.rstrip()
        self._observations.display = bool(texts)
        self._observations.update(texts)
        self._gallery.display = bool(pictures)
        self._side.set_class(not pictures, "alone")
        await self._gallery.show(pictures)

    def _show_controls(self) -> None:
        """Shows all but the observations, which keys do not change."""
        self._controls.update(self._controls_text())
        self.call_after_refresh(self._show_selected)
        self._shown_message.display = bool(self._message)
        self._shown_message.update(self._message)
        self._keys.update(self._keys_text())
        self._show_status()

    def _show_status(self) -> None:
        progress = self.player.progress
        timestep = progress.timestep
        text = Text().append(f"{self.title}\n", _BOLD)
        parts: list[str] = []
        if timestep is not None:
            parts = [f"{name} {value}" for name, value in progress.facts().items()]
            if progress.steps:
                parts.append(f"discount {describe(timestep.discount)}")
            if timestep.last():
                ended = "interrupted" if np.any(timestep.discount) else "terminated"
                parts.append(f"over: {ended}")
            elif self._rate is not None:
                parts.append("paused" if self._is_paused else f"{self._rate:g} steps/s")
        text.append("   ".join(parts) + "\n")
        waiting = self._waiting_text()
        if waiting:
            text.append(waiting, Style(color="yellow"))
        elif progress.action:
            sent = list(progress.action.items())[:_MOST_SENT]
            said = ", ".join(f"{name}={in_short(value)}" for name, value in sent)
            text.append(one_line(f"after {said}"), _DIM)
        self._status.update(text)

    def _waiting_text(self) -> str:
        seconds = 0.0 if self._busy_since is None else time.monotonic() - self._busy_since
        if self.player.progress.timestep is not None and seconds < _WAITING_SECONDS:
            return ""
        what = self.player.waiting_for
        text = f"waiting: {what}" if what else "waiting for the server"
        return one_line(text) + (f", {seconds:.0f} s" if seconds >= 1 else "")

    def _controls_text(self) -> Text:
        panel = self._panel
        if not panel.controls:
            return Text("no action can be changed by keys", _DIM)
        text = Text()
        width = max(len(control.label) for control in panel.controls)
        for control in panel.controls:
            is_selected = control is panel.selected
            mark = ">" if is_selected and len(panel.controls) > 1 else " "
            shown = f"{control.shown()[:-1]}_'" if control is self._typing else control.shown()
            label = f"{mark} {one_line(control.label).ljust(width)} = {shown}\n"
            text.append(label, _BOLD if is_selected else "")
            if is_selected:
                text.append(f"    {control.keys()}\n", _DIM)
        text.append(panel.keys_by_hand(), _DIM)
        text.rstrip()
        return text

    def _show_selected(self) -> None:
        """Scrolls to the selected control if not all of them fit."""
        side, panel = self._side, self._panel
        line = panel.controls.index(panel.selected) if panel.selected else 0
        top = self._controls.virtual_region.y + line - side.size.height // 2
        side.scroll_to(y=max(0, top), animate=False)

    def _keys_text(self) -> str:
        progress = self.player.progress
        is_over = progress.episode and progress.is_over
        parts = ["space: next episode" if is_over else "space: step", "r: reset"]
        if len(self._panel.controls) > 1:
            parts.append("tab: next action")
        if any(isinstance(control, TextEntry) for control in self._panel.controls):
            parts.append("t: type")
        if self._rate is not None:
            parts.append("p: continue" if self._is_paused else "p: pause")
        return "   ".join([*parts, "q: quit"])


def describe(value: Any) -> str:
    """Returns an observation that is not a picture as one line."""
    array = np.asarray(value)
    if array.dtype.kind != "b" or array.size > _MOST_FLAGS:
        return one_line(in_short(value))
    return "".join("☑" if each else "☐" for each in array.flat) if array.ndim else flag(array)


def _name_of(event: events.Key) -> str:
    """Returns the name of a key as `--keys` has it."""
    if event.is_printable and event.character not in (None, " "):
        return str(event.character)
    return {"shift+tab": "backtab", "ctrl+h": "backspace"}.get(event.key, event.key)
