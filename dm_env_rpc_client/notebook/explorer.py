"""The function `explore`, which returns a widget that shows and steps an environment."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dm_env
import ipywidgets
import numpy as np
from dm_env import specs

from dm_env_rpc_client import arguments
from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
from dm_env_rpc_client.environment.many.one_row import OneRow, num_envs_of
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.extensions.properties import PropertiesExtension, PropertyAccess
from dm_env_rpc_client.notebook.controls import Control, control_for
from dm_env_rpc_client.notebook.keyboard import Keyboard
from dm_env_rpc_client.notebook.observation_view import ObservationView
from dm_env_rpc_client.notebook.property_panel import LocalProperties, PropertyPanel
from dm_env_rpc_client.notebook.stepping import Stepper
from dm_env_rpc_client.server.properties import has_string_properties
from dm_env_rpc_client.tensors.controls import ROOT, Change, changed, checked_action
from dm_env_rpc_client.tensors.displays import markup, plots
from dm_env_rpc_client.tensors.displays.markup import named_leaves, rebuild
from dm_env_rpc_client.tensors.displays.progress import Progress
from dm_env_rpc_client.tensors.displays.values import in_short
from dm_env_rpc_client.tensors.specs import sample

Policy = Callable[[dm_env.TimeStep], Any]

_BY_HAND = "the controls"
_MIN_RATE, _MAX_RATE = 0.25, 60.0
_PLOT = (520, 140)


def explore(
    env: dm_env.Environment,
    *,
    policy: Policy | None = None,
    action: Any = None,
    keys: Mapping[str, Any] | None = None,
    labels: Mapping[str, Sequence[str]] | None = None,
    properties: PropertyAccess | None = None,
    rate: float = 5.0,
) -> Explorer:
    """Return a widget that shows and steps an environment, for use as the last line of a cell.

    The widget shows all observations (images as images, vectors as plots), plots of the rewards
    and the returns, and the properties. The widget has a control for each action, derived from its
    spec, and buttons that step, run and reset. The controls follow the actions of a policy. The
    explorer begins with a reset and steps the environment in its own thread, so the kernel is free
    for other cells. Until you `close` the explorer, it also shows calls of `env.reset()` and
    `env.step(action)` in other cells. Calls by the explorer and by other cells wait for each
    other.

    For a batched world, a list selects the row to show. All rows get the same action, and
    `policy`, `action`, `keys` and `labels` apply to one row.

    Keys work while the box that lists them has the focus. The available keys are the given `keys`,
    space for a step, Enter for run and stop, and r for reset. A key held down during a run sets
    its values in every step and overrides the controls and the policy.

    Args:
      env: any dm_env.Environment.
      policy: returns an action for a TimeStep. The policy becomes an option of "run".
      action: the initial values of the controls, a whole action or some of its values, nested or
        by flat name; all others start at the middle of three values, or otherwise at the value
        nearest to 0.
      keys: actions by key. Keys are named as in `KeyboardEvent.key`, such as "ArrowLeft" or
        "a"; an action may have only some of the values, nested or by flat name. None derives
        the keys from the specs.
      labels: texts for the buttons of actions with few values, by the flat name of the action.
      properties: the properties to show; None for the properties of the environment or of its
        server. The properties are not read until the user presses the button.
      rate: the maximum number of steps per second of a run; a slider changes it.

    Returns:
      The Explorer, an ipywidgets container.

    Raises:
      SpecError: `action`, `keys` or `labels` contains an unknown action or an invalid value, or
        the rate is out of the range of its slider.
    """
    return Explorer(env, policy, action, keys, labels, properties, rate)


class Explorer(ipywidgets.VBox):
    """The widget that `explore` returns, with the same arguments."""

    _stepper: Stepper

    def __init__(
        self,
        env: dm_env.Environment,
        policy: Policy | None,
        action: Any,
        keys: Mapping[str, Any] | None,
        labels: Mapping[str, Sequence[str]] | None,
        properties: PropertyAccess | None,
        rate: float,
    ):
        super().__init__()
        self._row: OneRow | None = None
        whole = env
        if isinstance(env, DmEnvAdaptor) and num_envs_of(env) is not None:
            env = self._row = OneRow(env)
        self._action_spec = env.action_spec()
        self._specs: dict[str, specs.Array] = named_leaves(self._action_spec, ROOT)
        self._controls = self._make_controls(labels or {}, action)
        self._keyboard = Keyboard(keys, self._specs, self._press)
        self._is_led = False
        self._random = np.random.default_rng()
        self._policies: dict[str, Policy] = {
            _BY_HAND: lambda _: self._chosen([]),
            "random": lambda _: self._sample(),
        }
        if policy is not None:
            self._policies = {"the policy": policy, **self._policies}
        self._view = ObservationView(env.observation_spec())
        toolbar = self._make_toolbar(rate)
        self._status = ipywidgets.HTML()
        self._plots = ipywidgets.HTML()
        self._stepper = stepper = Stepper(env, self._act, self._show, rate)
        properties = properties or _properties_of(whole)
        self._panel = None if properties is None else PropertyPanel(properties, stepper.call)
        self.children = self._lay_out(toolbar)
        self.add_class("dm-env-explorer")
        stepper.reset()

    def close(self) -> None:
        """Stop stepping and remove the widget from the page, but keep the environment open."""
        # ipywidgets also calls `close` if `__init__` has failed.
        if hasattr(self, "_stepper"):
            self._stepper.close()
        super().close()

    def _make_controls(
        self, labels: Mapping[str, Sequence[str]], action: Any
    ) -> dict[str, Control]:
        first = {} if action is None else checked_action(action, self._specs)
        unknown = labels.keys() - self._specs.keys()
        if unknown:
            known = ", ".join(map(repr, self._specs)) or "none"
            raise SpecError(f"labels: unknown action {min(unknown)!r}; actions: {known}")
        controls = {}
        for name, spec in self._specs.items():
            control = control_for(spec, f"action {name!r}", labels.get(name))
            if control is not None:
                if name in first:
                    control.show(first[name])
                controls[name] = control
        return controls

    def _make_toolbar(self, rate: float) -> ipywidgets.Widget:
        rate = arguments.amount("rate", rate)
        if not _MIN_RATE <= rate <= _MAX_RATE:
            raise SpecError(
                f"rate must be from {_MIN_RATE} to {_MAX_RATE} steps per second, got {rate}"
            )
        named = {"description_width": "initial"}
        self._run_button = self._button("run", "Run", "play")
        self._source = ipywidgets.Dropdown(
            options=list(self._policies),
            description="run with",
            style=named,
            layout=ipywidgets.Layout(width="190px"),
        )
        self._rate = ipywidgets.FloatLogSlider(
            value=rate,
            base=10,
            min=np.log10(_MIN_RATE),
            max=np.log10(_MAX_RATE),
            step=0.05,
            description="steps/s",
            readout_format=".1f",
            style=named,
            layout=ipywidgets.Layout(width="250px"),
        )
        self._rate.observe(lambda change: setattr(self._stepper, "rate", change["new"]), "value")
        step = self._button("step", "Step", "step-forward")
        reset = self._button("reset", "Reset", "undo")
        rows = [] if self._row is None else [self._make_rows(self._row)]
        return ipywidgets.HBox(
            [step, self._run_button, reset, self._source, self._rate, *rows],
            layout=ipywidgets.Layout(flex_flow="row wrap", align_items="center"),
        )

    def _make_rows(self, env: OneRow) -> ipywidgets.Dropdown:
        """Return the widget that lists the rows of a batched world."""
        rows = ipywidgets.Dropdown(
            options=range(env.num_envs),
            description="row",
            style={"description_width": "initial"},
            layout=ipywidgets.Layout(width="120px"),
        )

        def select(row: int) -> None:
            env.row = row
            shown = env.shown()
            if shown is not None:
                self._stepper.show_other(shown)

        rows.observe(lambda change: self._stepper.call(lambda: select(change["new"])), "value")
        return rows

    def _button(self, command: str, text: str, icon: str) -> ipywidgets.Button:
        button = ipywidgets.Button(
            description=text, icon=icon, layout=ipywidgets.Layout(width="auto")
        )
        button.on_click(lambda _: self._press(command))
        return button

    def _lay_out(self, toolbar: ipywidgets.Widget) -> list[ipywidgets.Widget]:
        rows: list[ipywidgets.Widget] = [_title("Actions")]
        for name, spec in self._specs.items():
            control = self._controls.get(name)
            if control is None:
                note = f"<i>not sent: there is no control for {markup.escape(spec)}</i>"
                widget = ipywidgets.HTML(note)
            else:
                control.on_set(functools.partial(self._was_set, control))
                widget = control.widget
            label = ipywidgets.HTML(
                f"<b>{markup.escape(name, 200)}</b>",
                layout=ipywidgets.Layout(width="110px", flex="0 0 auto"),
            )
            centred = ipywidgets.Layout(align_items="center")
            rows.append(ipywidgets.HBox([label, widget], layout=centred))
        left = ipywidgets.Layout(flex="0 1 auto", min_width="0")
        right = ipywidgets.Layout(flex="1 1 400px", min_width="0")
        body = ipywidgets.HBox(
            [
                ipywidgets.VBox([self._view.widget], layout=left),
                ipywidgets.VBox([*rows, self._keyboard.pad, self._plots], layout=right),
            ],
            layout=ipywidgets.Layout(flex_flow="row wrap", grid_gap="8px 28px"),
        )
        parts = [toolbar, self._status, body]
        if self._panel is not None:
            parts += [_title("Properties"), self._panel.widget]
        return parts

    def _press(self, what: str, repeated: bool = False) -> None:
        """Execute the command of a button or a key."""
        stepper = self._stepper
        if what == "run" and not repeated:
            (stepper.stop if stepper.is_running else stepper.run)()
        elif what == "reset" and not repeated:
            stepper.reset()
        elif stepper.is_running or (repeated and stepper.is_busy):
            # A run reads the keys in each step. Key repeats that are faster than the environment
            # must not queue up.
            return
        elif what in ("step", "act"):
            stepper.step(lambda _: self._chosen(self._keyboard.keys.take()))

    def _was_set(self, control: Control) -> None:
        """Take a step if an action's button was clicked, but not if a slider or text changed."""
        if control.is_move:
            self._press("act")

    def _act(self, timestep: dm_env.TimeStep) -> Any:
        """Return the action for the next step of a run."""
        pressed = self._keyboard.keys.take()
        self._is_led = not pressed and self._source.value != _BY_HAND
        if pressed:
            return self._chosen(pressed)
        return self._policies[self._source.value](timestep)

    def _follow(self, action: Any) -> None:
        """Show the action of a policy in the controls."""
        for name, value in named_leaves(action, ROOT).items():
            if name in self._controls:
                self._controls[name].show(value)

    def _chosen(self, pressed: Sequence[Change]) -> Any:
        values = {name: control.value() for name, control in self._controls.items()}
        return rebuild(self._action_spec, changed(values, pressed), ROOT)

    def _sample(self) -> Any:
        values = {name: sample(self._specs[name], self._random) for name in self._controls}
        return rebuild(self._action_spec, values, ROOT)

    def _show(self, progress: Progress) -> int:
        """Show the progress of the stepper.

        The stepper calls this method in its own thread.
        """
        sent, error = 0, progress.error
        if progress.timestep is not None:
            try:
                sent = self._view.show(progress.timestep.observation, progress.is_running)
            except Exception as reason:
                error = error or f"the observation cannot be shown: {reason!r}"
        if self._is_led and progress.action is not None:
            self._is_led = False
            self._follow(progress.action)
        self._plots.value = _plots(progress)
        self._status.value = _status(progress, error)
        self._run_button.description = "Stop" if progress.is_running else "Run"
        self._run_button.icon = "stop" if progress.is_running else "play"
        self._run_button.button_style = "warning" if progress.is_running else "success"
        return sent + len(self._plots.value) + len(self._status.value)


def _properties_of(env: dm_env.Environment) -> PropertyAccess | None:
    for value in getattr(env, "__dict__", {}).values():
        if isinstance(value, PropertyAccess):
            return value
    if isinstance(env, DmEnvAdaptor):
        return PropertiesExtension(env.connection)
    return LocalProperties(env) if has_string_properties(env) else None


def _title(text: str) -> ipywidgets.HTML:
    return ipywidgets.HTML(f'<div style="font-weight:600;margin-top:4px">{text}</div>')


def _status(progress: Progress, error: str) -> str:
    facts = []
    if progress.timestep is not None:
        facts = [f"{name} <b>{value}</b>" for name, value in progress.facts().items()]
        if progress.action is not None:
            facts.append(f"action <b>{markup.escape(_action_text(progress.action), 120)}</b>")
        if progress.is_over:
            facts.append("<b>the episode is over</b>; the next step begins a new one")
    line = " &nbsp;·&nbsp; ".join(facts)
    if error:
        line += (
            '<div style="color:#c62828;white-space:pre-wrap;overflow-wrap:anywhere">'
            f"{markup.escape(error)}</div>"
        )
    return line


def _action_text(action: Any) -> str:
    return ", ".join(
        f"{name} {in_short(value)}" for name, value in named_leaves(action, ROOT).items()
    )


def _plots(progress: Progress) -> str:
    before = progress.total_steps - len(progress.rewards)
    per_step = plots.line(
        list(progress.rewards),
        *_PLOT,
        title="Reward per step",
        axis=plots.Axis(
            "step, of all episodes" if progress.episode > 1 else "step",
            "reward",
            before + 1,
            [index for index, begins in enumerate(progress.begins) if begins and index],
        ),
    )
    per_episode = plots.line(
        list(progress.returns),
        *_PLOT,
        title="Return per episode",
        axis=plots.Axis(
            "finished episode",
            "return: the sum of its rewards",
            progress.finished - len(progress.returns) + 1,
        ),
    )
    return f'<div class="dm-env-plots"><div>{per_step}</div><div>{per_episode}</div></div>'
