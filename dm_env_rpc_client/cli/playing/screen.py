"""The screen of a player, laid out for the current size of the terminal."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping
from typing import Any

import dm_env
import numpy as np
import rich.console
from dm_env import specs
from rich.segment import Segment
from rich.style import Style

from dm_env_rpc_client.cli.plain_text import one_line
from dm_env_rpc_client.cli.playing.controls import Control, TextEntry
from dm_env_rpc_client.cli.playing.panel import Panel
from dm_env_rpc_client.cli.playing.pictures import Ink, Line, ink_for, picture_for

__all__ = ["Screen", "View"]

_BOLD = Style(bold=True)
_DIM = Style(dim=True)
_ERROR = Style(bold=True, color="red")
_MOST_NUMBERS = 8
_MOST_MESSAGE_LINES = 4
_GAP = 2
_NARROWEST_PICTURE = 16


@dataclasses.dataclass
class View:
    """The content of the screen.

    Attributes:
      title: the address of the server.
      panel: the controls.
      rate: steps per second in real time; None if each step waits for a key.
      observation_specs: by flat name.
      timestep: the last one; None before the first.
      observations: of that TimeStep, by flat name.
      episode: its number, from 1.
      steps: of the episode so far.
      episode_return: the sum of its rewards so far.
      total_steps: of all episodes.
      sent: the last action.
      typing: the text that is being typed, if any.
      paused: whether real time is paused.
      message: the last error.
    """

    title: str
    panel: Panel
    rate: float | None = None
    observation_specs: Mapping[str, specs.Array] = dataclasses.field(default_factory=dict)
    timestep: dm_env.TimeStep | None = None
    observations: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    episode: int = 0
    steps: int = 0
    episode_return: float = 0.0
    total_steps: int = 0
    sent: str = ""
    typing: TextEntry | None = None
    paused: bool = False
    message: str = ""


class Screen:
    """The terminal's alternate screen. A context, which restores the terminal at its end.

    Args:
      console: the terminal.
    """

    def __init__(self, console: rich.console.Console):
        self._console = console
        self._ink = ink_for(console)

    def __enter__(self) -> Screen:
        self.show()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.hide()

    def show(self) -> None:
        """Switches to the alternate screen."""
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)

    def hide(self) -> None:
        """Switches back to the main screen, with its content."""
        self._console.show_cursor(True)
        self._console.set_alt_screen(False)

    def draw(self, view: View, width: int, height: int) -> None:
        """Draws a view.

        Args:
          view: what to draw.
          width: columns of the terminal.
          height: rows of the terminal.
        """
        lines = [
            Segment.adjust_line_length(line, width)
            for line in compose(view, width, height, self._ink)
        ]
        self._console.update_screen_lines(lines)


def compose(view: View, width: int, height: int, ink: Ink) -> list[Line]:
    """Returns the lines of a view, one for each row of the terminal."""
    head = [[Segment(view.title, _BOLD)], [Segment(_status(view))], [Segment(_sent(view), _DIM)]]
    foot = [[], *_control_lines(view, ink, max(1, height // 3)), [Segment(_keys(view), _DIM)]]
    if view.message:
        foot.extend(
            [Segment(line, _ERROR)]
            for line in textwrap.wrap(one_line(view.message), width)[:_MOST_MESSAGE_LINES]
        )
    texts, pictures = [], {}
    for name, value in view.observations.items():
        picture = picture_for(value, view.observation_specs[name])
        if picture is None:
            texts.append([Segment(f"{one_line(name)}: ", _BOLD), Segment(describe(value))])
        else:
            pictures[name] = picture
    room = height - len(head) - len(foot)
    texts = texts[: max(0, room // 2 if pictures else room)]
    room -= len(texts) + (1 if texts and pictures else 0)
    lines = [*head]
    # Pictures that do not fit side by side are left out.
    shown = list(pictures.items())[: max(1, width // _NARROWEST_PICTURE)]
    if shown and room > 1:
        each = (width - _GAP * (len(shown) - 1)) // len(shown)
        drawn = [(name, picture.lines(each, room - 1, ink)) for name, picture in shown]
        lines.extend(_side_by_side(drawn, each))
        if texts:
            lines.append([])
    lines.extend(texts)
    # The keys are always in the last rows, where a player looks for them.
    lines.extend([[]] * (height - len(lines) - len(foot)))
    lines = lines[: max(0, height - len(foot))] + foot
    return lines[:height]


def describe(value: Any) -> str:
    """Returns an observation that is not a picture as one line."""
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        return one_line(str(value))
    if array.ndim == 0:
        return f"{array[()]:.6g}" if array.dtype.kind == "f" else str(array[()])
    if array.size <= _MOST_NUMBERS:
        return one_line(np.array2string(array, precision=4, suppress_small=True))
    summary = ""
    if array.dtype.kind != "b" and array.size:
        summary = f", {array.min():.4g} to {array.max():.4g}, mean {array.mean():.4g}"
    return f"{array.dtype.name}{list(array.shape)}{summary}"


def _status(view: View) -> str:
    if view.timestep is None:
        return "waiting for the server"
    parts = [f"episode {view.episode}", f"step {view.steps}"]
    if not view.timestep.first():
        parts.append(f"reward {describe(view.timestep.reward)}")
    parts.append(f"return {view.episode_return:.6g}")
    if not view.timestep.first():
        parts.append(f"discount {describe(view.timestep.discount)}")
    if view.timestep.last():
        ended = "interrupted" if np.any(view.timestep.discount) else "terminated"
        parts.append(f"over: {ended}")
    elif view.rate is not None:
        parts.append("paused" if view.paused else f"{view.rate:g} steps/s")
    return "   ".join(parts)


def _sent(view: View) -> str:
    if view.timestep is None or view.timestep.first():
        return ""
    return one_line(f"after {view.sent}") if view.sent else ""


def _control_lines(view: View, ink: Ink, most: int) -> list[Line]:
    panel = view.panel
    if not panel.controls:
        return [[Segment("no action can be changed by keys", _DIM)]]
    selected = panel.controls.index(panel.selected) if panel.selected else 0
    first = max(0, min(selected - most // 2, len(panel.controls) - most))
    width = max(len(control.label) for control in panel.controls)
    lines = []
    for control in panel.controls[first : first + most]:
        is_selected = control is panel.selected
        mark = "> " if is_selected and len(panel.controls) > 1 else "  "
        label = one_line(control.label).ljust(width)
        lines.append(
            [
                Segment(
                    f"{mark}{label} = {_shown(control, view):<8} ", _BOLD if is_selected else None
                ),
                Segment(control.keys(ink is Ink.HALF_BLOCKS), _DIM),
            ]
        )
    by_hand = panel.keys_by_hand()
    if by_hand:
        lines.append([Segment(f"  {by_hand}", _DIM)])
    return lines


def _shown(control: Control, view: View) -> str:
    if isinstance(control, TextEntry):
        cursor = "_" if control is view.typing else ""
        return repr(control.value)[:-1] + cursor + "'"
    return f"{control.value:.6g}" if isinstance(control.value, float) else str(control.value)


def _keys(view: View) -> str:
    over = view.timestep is not None and view.timestep.last()
    step = "space: next episode" if over else "space: step"
    parts = [step, "r: reset"]
    if len(view.panel.controls) > 1:
        parts.append("tab: next action")
    if any(isinstance(control, TextEntry) for control in view.panel.controls):
        parts.append("t: type")
    if view.rate is not None:
        parts.append("p: continue" if view.paused else "p: pause")
    return "   ".join([*parts, "q: quit"])


def _side_by_side(pictures: list[tuple[str, list[Line]]], each: int) -> list[Line]:
    height = max(len(drawn) for _, drawn in pictures)
    lines: list[Line] = [[]]
    for name, _ in pictures:
        lines[0].append(Segment(one_line(name, each).ljust(each + _GAP), _DIM))
    for row in range(height):
        line: Line = []
        for _, drawn in pictures:
            part = drawn[row] if row < len(drawn) else []
            line.extend(Segment.adjust_line_length(part, each + _GAP))
        lines.append(line)
    return lines
