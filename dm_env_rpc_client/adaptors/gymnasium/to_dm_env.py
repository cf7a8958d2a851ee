"""Conversion of Gymnasium environments to dm_env environments, for instance to serve them.

Clients that support Gymnasium also receive values that have no counterpart in dm_env; see
`value_json` and `space_json`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import specs

from dm_env_rpc_client.adaptors.gymnasium import elements, space_json, value_json
from dm_env_rpc_client.adaptors.gymnasium.batch_form import (
    BEGUN,
    NumpyEnv,
    kind_for,
    taken,
)
from dm_env_rpc_client.adaptors.gymnasium.batch_rows import GymnasiumRows
from dm_env_rpc_client.adaptors.gymnasium.calls.served import OfEach, ServedCalls, kinds_of
from dm_env_rpc_client.adaptors.gymnasium.info_observation import (
    BLOCKS,
    EXTRAS,
    INFOS,
    OWN,
    STACKED,
    encoded,
)
from dm_env_rpc_client.adaptors.gymnasium.returns import as_reward, begun, explain
from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.server.errors import RequestError, environment_error
from dm_env_rpc_client.server.properties import Properties
from dm_env_rpc_client.server.worlds.world import SEQUENCE_LOST
from dm_env_rpc_client.tensors import array_kinds, bounded_parsing
from dm_env_rpc_client.tensors.array_kinds import NUMPY

DESCRIPTION = "gymnasium"
"""The key of the property that contains the spaces and the metadata as JSON."""

FRAME = "gymnasium.frame"
"""The key of the property that contains the current frame: an array, or another value as JSON."""

OBSERVATION = "observation"
"""The name of the environment's own observation, sent together with `EXTRAS`."""


class GymnasiumEnvironment(elements.Converting, dm_env.Environment):
    """A dm_env environment that steps a Gymnasium environment, for instance to serve it.

    The last TimeStep of an episode has discount 0 if Gymnasium calls the episode terminated, and 1
    if it is only truncated. The module `elements` lists the specs for all types of spaces.

    Args:
      env: the Gymnasium environment; `close` closes it too.
      seed: the seed of the first reset; None for a random one each time.
      arrays: as for `serve`.

    Attributes:
      reset_settings: the settings that `configure` accepts.
      gymnasium: the Gymnasium environment.
      action_space: the action space, as clients reconstruct it.
      observation_space: the observation space, as clients reconstruct it.
      spaces_json: the JSON of both spaces, by name.
      notes: notes on spaces of other libraries, each replaced by the nearest Gymnasium space.
      infos: whether observations include the infos, or the form of infos that the client has
        requested.

    Raises:
      SpecError: dm_env has no spec for a space of the environment.
    """

    reset_settings = ("seed", "options", "infos")

    def __init__(self, env: gymnasium.Env[Any, Any], seed: int | None = None, arrays: str = "auto"):
        self.gymnasium = env
        # None once the first observation has shown the kind of the environment's arrays.
        self._arrays: str | None = arrays
        self._seed = seed
        self._options: Mapping[str, Any] | None = None
        self.infos: bool | str = False
        self.notes: list[str] = []
        # The spaces after the round trip through JSON, so that both ends convert alike.
        self.spaces_json = {
            name: space_json.to_json(space, name, self.notes)
            for name, space in (
                ("action_space", env.action_space),
                ("observation_space", env.observation_space),
            )
        }
        self.action_space, self.observation_space = (
            space_json.from_json(value, name) for name, value in self.spaces_json.items()
        )
        self._make_converters()
        self._is_running = False
        # Whether the end of the episode is unreported because its last step failed.
        self._was_end_lost = False
        self._calls = ServedCalls()
        self._info: Mapping[str, Any] = {}

    def _make_converters(self) -> None:
        self._read_action = elements.reader(self.action_space, "action", as_sampled=True)
        self._write_observation = elements.writer(self.observation_space, OBSERVATION)

    @property
    def info(self) -> Mapping[str, Any]:
        """The info that the environment returned from its latest step or reset."""
        return self._info

    @property
    def properties(self) -> Mapping[str, Callable[[], Any]]:
        """The properties for a server: a mapping of keys to functions that return the values."""
        offered: dict[str, Callable[[], Any]] = {DESCRIPTION: self._describe}
        if self.gymnasium.render_mode is not None:
            offered[FRAME] = self._frame
        return offered

    def offer_calls(
        self, properties: Properties, callable_names: Sequence[str], settable_names: Sequence[str]
    ) -> None:
        """Add the properties for the methods and attributes that clients may use; see `serve`."""
        callee = OfEach(1, lambda _, function, *given: function(self.gymnasium, *given))
        self._calls.offer(properties, callee, callable_names, settable_names, 1)
        kinds_of(properties, self.gymnasium, callable_names)

    def configure(self, settings: Mapping[str, Any]) -> Callable[[], None]:
        """Apply the settings of a Reset request.

        Args:
          settings: `seed`, an integer, and `options`, a mapping or its JSON text (see
            `value_json`), are passed to the environment's next `reset`. `infos`, a bool or a form
            defined in `info_observation`, adds the info to later observations. The environment's
            own observation is then under `OBSERVATION` and the JSON of its info under `EXTRAS`.

        Returns:
          A function that restores the former settings.

        Raises:
          ValueError: a setting has the wrong type.
        """
        arguments = reset_arguments(settings)
        before = self._seed, self._options, self.infos

        def undo() -> None:
            self._seed, self._options, self.infos = before

        self._seed = arguments.get("seed", self._seed)
        self._options = arguments.get("options", self._options)
        self.infos = arguments.get(INFOS, self.infos)
        return undo

    def reset(self) -> dm_env.TimeStep:
        """Begin an episode."""
        observation, self._info = self.begin()
        self._is_running = True
        self._was_end_lost = False
        return dm_env.restart(self._observed(observation, False))

    def begin(self) -> tuple[Any, dict[str, Any]]:
        """Begin an episode with the configured seed and options, which apply to this episode only.

        Returns:
          The observation and the info returned by the environment's own `reset`.

        Raises:
          TypeError: `reset` returned anything else.
        """
        seed, self._seed = self._seed, None
        options, self._options = self._options, None
        env, given = self.gymnasium, None if options is None else dict(options)
        try:
            returned = env.reset(seed=seed, options=given)
        except (TypeError, ValueError) as error:
            explain(env, "reset", error)
            raise
        begin = begun(env, returned)
        if self._arrays is not None:
            kind = kind_for(env, begin[0], self._arrays)
            self._arrays = None
            if kind is not NUMPY or array_kinds.kind_of(begin[0]) is not NUMPY:
                self.gymnasium = NumpyEnv(env, kind)
                begin = taken(begin, BEGUN)
        return begin

    def batch_rows(self, count: int, mode: str) -> GymnasiumRows:
        """Return rows for a batch of `count` Gymnasium environments; see `server.batch.Rows`."""
        return GymnasiumRows(self, count, mode)

    def step(self, action: Any) -> dm_env.TimeStep:
        """Take a step, or begin an episode if none is running."""
        if not self._is_running:
            if self._was_end_lost:
                raise RequestError.not_now(SEQUENCE_LOST)
            return self.reset()
        try:
            element = self._read_action(action)
        except ProtocolError as error:  # From JSON, which encodes the actions of a Graph.
            raise RequestError.invalid(str(error)) from error
        try:
            observation, reward, terminated, truncated, self._info = self.gymnasium.step(element)
        except (TypeError, ValueError) as error:
            explain(self.gymnasium, "step", error)
            raise
        self._is_running = not (terminated or truncated)
        try:
            if type(reward) is not float:  # Most rewards are floats and need no call.
                reward = as_reward(self.gymnasium, reward)
            observed = self._observed(observation, bool(terminated and truncated))
        except BaseException:
            self._was_end_lost = not self._is_running
            raise
        if terminated:
            return dm_env.termination(reward, observed)
        if truncated:
            return dm_env.truncation(reward, observed)
        return dm_env.transition(reward, observed)

    def action_spec(self) -> Any:
        """Return the action spec, or a structure of specs if the space is a Tuple or Dict."""
        return elements.to_spec(self.action_space, "action")

    def observation_spec(self) -> Any:
        """Return the observation spec, or a structure of specs if the space is a Tuple or Dict."""
        spec = elements.to_spec(self.observation_space, "observation")
        if self.infos:
            return {OBSERVATION: spec, EXTRAS: specs.StringArray((), name=EXTRAS)}
        return spec

    def sample_action(self) -> Any:
        """Return an action sampled from the environment's own action space."""
        sample = self.gymnasium.action_space.sample()
        return elements.to_structure(self.action_space, sample, "action")

    def render(self) -> None:
        """Render the environment, if it was made with a render mode."""
        if self.gymnasium.render_mode is not None:
            self.gymnasium.render()

    def close(self) -> None:
        """Close the environment."""
        self.gymnasium.close()

    def _observed(self, observation: Any, is_truncated_too: bool) -> Any:
        try:
            value = self._write_observation(observation)
        except SpecError as error:
            raise environment_error(error, "space") from error
        if not self.infos:
            return value
        text = ""  # Most steps have no info, and skip two calls.
        if self._info or is_truncated_too:
            text = encoded(self._info, is_truncated_too, self.infos is not True)
        return {OBSERVATION: value, EXTRAS: text}

    def _describe(self) -> str:
        env, spec = self.gymnasium, self.gymnasium.spec
        description = {
            "version": value_json.VERSION,
            **self.spaces_json,
            "metadata": value_json.to_jsonable(env.metadata, where="metadata"),
            "render_mode": env.render_mode,
            "max_episode_steps": None if spec is None else spec.max_episode_steps,
            "reward_range": value_json.to_jsonable(getattr(env, "reward_range", None)),
            "id": "" if spec is None else spec.id,
            "notes": self.notes,
            INFOS: [OWN],
        }
        return bounded_parsing.encode(description, DESCRIPTION).decode("ascii")

    def _frame(self) -> Any:
        return encoded_frame(self.gymnasium.render())


def as_environment(env: Any, arrays: str = "auto") -> GymnasiumEnvironment:
    """Convert a Gymnasium environment to a dm_env.Environment.

    Args:
      env: the environment that a factory created.
      arrays: as for `serve`.

    Raises:
      SpecError: there is no spec for a space of the environment.
    """
    return GymnasiumEnvironment(env, arrays=arrays)


def encoded_frame(frame: Any) -> Any:
    """Convert a rendered frame to the value of a property: an array or a JSON string."""
    is_numbers = isinstance(frame, np.ndarray) and frame.dtype.kind in "biuf"
    return frame if is_numbers else value_json.encode(frame, where="the frame")


def reset_arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Check the settings of a Reset and convert them to arguments for Gymnasium environments.

    Args:
      settings: `seed`, an integer; `options`, a mapping or its JSON text (see `value_json`); and
        `infos`, a bool or a form defined in `info_observation`.

    Raises:
      ValueError: a setting has the wrong type.
    """
    arguments: dict[str, Any] = {}
    for name, value in settings.items():
        kind = np.asarray(value).dtype.kind if np.ndim(value) == 0 else ""
        if name == "seed" and kind in ("i", "u"):
            arguments[name] = int(value)
        elif name == INFOS and kind == "b":
            arguments[name] = bool(value)
        elif name == INFOS and isinstance(value, str) and value in (OWN, STACKED, BLOCKS):
            arguments[name] = str(value)
        elif name == "options" and isinstance(value, Mapping):
            arguments[name] = value
        elif name == "options" and isinstance(value, str):
            arguments[name] = _options(value)
        else:
            expected = {
                "seed": "an integer",
                INFOS: f"a bool, {OWN!r}, {STACKED!r} or {BLOCKS!r}",
            }.get(name, "settings or JSON")
            raise ValueError(f"setting {name!r} is {value!r}; expected {expected}")
    return arguments


def _options(text: str) -> Mapping[str, Any]:
    try:
        options = value_json.decode(text, "its text")
    except ProtocolError as error:
        raise ValueError(f"setting 'options': {error}") from error
    if not isinstance(options, Mapping):
        raise ValueError(f"setting 'options': {text!r} is not a JSON object")
    return options
