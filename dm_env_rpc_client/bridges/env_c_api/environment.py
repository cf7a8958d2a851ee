"""An adaptor that presents a library with the C interface as a dm_env.Environment."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from dm_env_rpc_client import arguments
from dm_env_rpc_client.bridges.env_c_api.actions import StickyActions
from dm_env_rpc_client.bridges.env_c_api.child_process.runner import ProcessRunner
from dm_env_rpc_client.bridges.env_c_api.context import Status
from dm_env_rpc_client.bridges.env_c_api.declarations import layout
from dm_env_rpc_client.bridges.env_c_api.description import Event, text_settings
from dm_env_rpc_client.bridges.env_c_api.library import Connect, LaunchParams, Library, Opening
from dm_env_rpc_client.bridges.env_c_api.library_properties import (
    PropertyAttributes,
    list_recursively,
)
from dm_env_rpc_client.bridges.env_c_api.runner import Frame, LocalRunner
from dm_env_rpc_client.errors import ConnectionClosedError, DmEnvRpcClientError, SpecError
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.tensors import nesting
from dm_env_rpc_client.tensors.memory_limits import DEFAULT, Limits
from dm_env_rpc_client.tensors.specs import VariableStringArray

_INT32 = np.iinfo(np.int32)

START_ATTEMPTS = 10
"""The default number of attempts to start an episode; pauses in between total half a second."""

REQUEST_SECONDS = 120.0
"""The default time limit, in seconds, for one call in a child process."""


class EnvCApiEnvironment(dm_env.Environment):
    """An environment in a library with the C interface EnvCApi (env_c_api.h).

    Actions are a dict: int32 scalars for discrete, float64 scalars for continuous and strings for
    text actions. They are sticky: a value omitted from a step stays the same to the end of the
    episode, and each episode begins with 0 (or the bound nearest to it) and empty strings. All
    values of an action are validated before any of them reaches the library.

    Observations are a dict: float64, uint8, int32 or int64 arrays and `str`. Variable lengths are
    -1 in the spec. An observation with several variable lengths, or a varying number of
    dimensions, is a group of two arrays: `values`, flat in row-major order, and `shape`. Arrays
    belong to the caller: they are writable, and later steps do not change them.

    The interface forbids observing after the end of an episode, so a LAST step repeats the previous
    observations in new arrays, and has no events. Its discount is 0 if the status is Terminated and
    1 if it is Interrupted. After an exception, `step` raises until `reset` begins a new episode; an
    invalid action changes nothing.

    Threads may share an environment; their calls are serialized.

    Args:
      library: the path of the library; None if `connect` is an address or a callable.
      connect: the function that creates the context: its exported name, its address (an int, or
        "+0x1234", an offset from the library's load address), or a callable that returns
        the filled struct and the context. See `library.Connect`.
      version: the version of the library's env_c_api.h: 1.4, 2.0, 2.1 or 2.2. Versions are not
        compatible, and a library does not contain its version.
      settings: settings of the library, applied before `init`, under nested or flat names; each
        value is a str, bool, int or float.
      launch_params: the first argument of a connect function that expects a struct: the bytes of
        the struct, a list of C strings, or a cffi pointer.
      episode_seeds: the seed of the first episode, incremented for each later one; or an iterable
        with one seed per episode; None for random seeds. Seeds are int32.
      first_episode: the ID of the first episode, incremented for each later one.
      frames_per_step: the number of library steps in each step of this environment.
      observations: the names of the observations to read in every step; None for all.
      shapes: shapes of observations declared with 0 dimensions, by name or pattern, such as
        `{"WORLD.*": ()}` for libraries that declare scalars in this way; -1 is a variable length. A
        value of another shape is an error.
      events_observation: the name of an additional observation with the events as strings [-1],
        each event as JSON; see `event_text`. None to omit this observation.
      nested_tensors: False for flat dictionaries whose names contain periods.
      start_attempts: the maximum number of calls of `start` for one episode while it returns
        EAGAIN.
      isolated: run the library in a child process, so that a crash of the library is only an error
        in this process.
      request_timeout: time limit, in seconds, for each call in the child process; None for no
        limit.
      limits: limits for copies of the library's memory: `message_bytes` limits the total size of
        the observations of a step.

    Attributes:
      name: the name of the environment.
      fps: recommended steps per second of wall-clock time; None from version 2.0 on.

    Raises:
      SpecError: an argument is invalid, or the library refuses a setting.
      ModuleNotFoundError: the extra `c` is not installed.
      LibraryError: the library reports a failure; the error contains its message.
      ProtocolError: the library breaks the interface.
      ConnectionLostError, DeadlineExceededError: the child process died, or did not respond
        and was killed; the environment is unusable from then on.
    """

    def __init__(
        self,
        library: Library,
        connect: Connect,
        *,
        version: str = "1.4",
        settings: Mapping[str, Any] = MappingProxyType({}),
        launch_params: LaunchParams = None,
        episode_seeds: int | Iterable[int] | None = None,
        first_episode: int = 0,
        frames_per_step: int = 1,
        observations: Collection[str] | None = None,
        shapes: Mapping[str, Sequence[int]] = MappingProxyType({}),
        events_observation: str | None = None,
        nested_tensors: bool = True,
        start_attempts: int = START_ATTEMPTS,
        isolated: bool = False,
        request_timeout: float | None = REQUEST_SECONDS,
        limits: Limits = DEFAULT,
    ):
        self._frames_per_step = _int32("frames_per_step", frames_per_step, 1)
        start_attempts = _int32("start_attempts", start_attempts, 1)
        first_episode = _int32("first_episode", first_episode)
        none = "None for all"
        arguments.names("observations", observations, expected="a list of names", none=none)
        arguments.text("events_observation", events_observation, none="None")
        arguments.flag("nested_tensors", nested_tensors)
        arguments.flag("isolated", isolated)
        none = arguments.NO_LIMIT
        request_timeout = arguments.seconds("request_timeout", request_timeout, none=none)
        arguments.instance("limits", limits, Limits, "a Limits")
        arguments.mapping("shapes", shapes, expected="a mapping of names to shapes")
        self._events_observation = events_observation
        self._episodes = itertools.count(first_episode)
        self._seeds = _seeds(episode_seeds)
        self._lock = make_lock()
        self._limits = limits
        self._is_running = False
        self._failure: BaseException | None = None
        self._events: tuple[Event, ...] = ()
        self._last_values: list[Any] = []
        texts = text_settings(settings)
        open_shapes = {name: _checked_shape(name, shape) for name, shape in shapes.items()}
        opening = Opening(
            library,
            connect,
            version,
            launch_params,
            texts,
            None if observations is None else list(observations),
            open_shapes,
            start_attempts,
            limits,
        )
        runner = ProcessRunner(opening, request_timeout) if isolated else LocalRunner(opening)
        self._runner: LocalRunner | ProcessRunner | None = runner
        try:
            self._adopt(runner, nested_tensors)
        except BaseException:
            runner.close()
            raise

    def __repr__(self) -> str:
        state = "closed" if self._runner is None else "running" if self._is_running else "ready"
        return f"<{type(self).__name__} {self.name!r}, {state}>"

    @property
    def events(self) -> tuple[Event, ...]:
        """The events of the last `step` or `reset`; empty after a LAST step."""
        return self._events

    def reset(self) -> dm_env.TimeStep:
        """Begin a new episode.

        Returns:
          A FIRST TimeStep.

        Raises:
          SpecError: `episode_seeds` has no seed left, or the seed is not an int32.
          LibraryError: the library cannot start the episode, or exceeds `start_attempts`.
          DmEnvRpcClientError: otherwise as `step`.
        """
        with self._lock:
            return self._start(self._open_runner())

    def step(self, action: Any) -> dm_env.TimeStep:
        """Take a step, or begin an episode if none is running.

        Args:
          action: values by name, nested or flat; any value can be omitted. The action is ignored
            if the step begins an episode.

        Returns:
          The TimeStep, with the reward as a float.

        Raises:
          SpecError: the action does not conform to the spec; nothing has changed.
          LibraryError: the library returned the status Error; the text contains its message.
          DmEnvRpcClientError: an earlier exception ended the episode; call `reset`.
          ProtocolError: the library breaks the interface.
          ConnectionClosedError: the environment is closed.
          ConnectionLostError, DeadlineExceededError: the child process died, or did not respond.
        """
        with self._lock:
            runner = self._open_runner()
            if self._failure is not None:
                raise DmEnvRpcClientError(
                    "the episode ended in an error; call reset to begin another"
                ) from self._failure
            if not self._is_running:
                return self._start(runner)
            actions = self._actions.update(action)
            frame = self._run(runner.advance, actions, self._frames_per_step)
            if frame.status is Status.RUNNING:
                return dm_env.transition(frame.reward, self._observe(frame))
            values = [v if isinstance(v, str) else v.copy() for v in self._last_values]
            observation = self._observe(frame._replace(observations=values))
            if frame.status is Status.TERMINATED:
                return dm_env.termination(frame.reward, observation)
            return dm_env.truncation(frame.reward, observation)

    def action_spec(self) -> dict[str, Any]:
        """Return the action specs by name, nested in the same way as the actions."""
        return self._nest(dict(self._action_specs))

    def observation_spec(self) -> dict[str, Any]:
        """Return the observation specs by name, nested in the same way as the observations."""
        return self._nest(dict(self._observation_specs))

    def read_property(self, key: str) -> str:
        """Return the value of a property.

        Args:
          key: the key of the property.

        Raises:
          PropertyError: there is no such property, or it is not readable.
          DmEnvRpcClientError: otherwise as `step`.
        """
        with self._lock:
            return self._open_runner().read_property(key)

    def write_property(self, key: str, value: str) -> None:
        """Set a property; the library decides when the new value takes effect.

        Args:
          key: the key of the property.
          value: the new value.

        Raises:
          PropertyError: there is no such property, it is not writable, or the value is
            invalid.
          DmEnvRpcClientError: otherwise as `step`.
        """
        with self._lock:
            self._open_runner().write_property(key, value)

    def list_properties(
        self, key: str = "", *, recursive: bool = False
    ) -> dict[str, PropertyAttributes]:
        """Return the attributes of a property's direct children, by key.

        Args:
          key: the key of a listable property; most libraries list all properties under "".
          recursive: also list the properties below listable ones.

        Raises:
          PropertyError: there is no such property, or it is not listable.
          DmEnvRpcClientError: otherwise as `step`.
        """
        with self._lock:
            list_property = self._open_runner().list_property
            if recursive:
                return list_recursively(list_property, key, self._limits)
            return list_property(key)

    def close(self) -> None:
        """Release the environment and end its child process; repeated calls have no effect."""
        with self._lock:
            runner, self._runner = self._runner, None
            self._is_running = False
            if runner is not None:
                runner.close()

    def _open_runner(self) -> LocalRunner | ProcessRunner:
        if self._runner is None:
            raise ConnectionClosedError("the environment is closed")
        return self._runner

    def _adopt(self, runner: LocalRunner | ProcessRunner, nested_tensors: bool) -> None:
        description = runner.description
        self.name, self.fps = description.name, description.fps
        # In the order of a frame's values; a group has two names.
        self._names = [tuple(described.specs()) for described in description.observations]
        self._actions = StickyActions(description)
        self._action_specs = description.action_specs()
        self._observation_specs: dict[str, specs.Array] = {}
        for described in description.observations:
            self._observation_specs.update(described.specs())
        name = self._events_observation
        if name is not None:
            if name in self._observation_specs:
                raise SpecError(
                    f"events_observation is {name!r}, which is already the name of an observation"
                )
            self._observation_specs[name] = VariableStringArray((-1,), name=name)
        names = [*self._action_specs, *self._observation_specs]
        self._is_nested = nested_tensors and nesting.has_levels(names)
        if self._is_nested:
            nesting.check_unambiguous(self._action_specs)
            nesting.check_unambiguous(self._observation_specs)

    def _start(self, runner: LocalRunner | ProcessRunner) -> dm_env.TimeStep:
        episode = next(self._episodes)
        try:
            seed = next(self._seeds)
        except StopIteration:
            raise SpecError(f"episode_seeds has no seed for episode {episode}") from None
        episode, seed = _int32("the episode", episode), _int32("the seed", seed)
        self._actions.reset()
        frame = self._run(runner.start, episode, seed)
        return dm_env.restart(self._observe(frame))

    def _run(self, call: Callable[..., Frame], *given: Any) -> Frame:
        """Start or advance an episode; after an exception, no episode is running."""
        self._is_running, self._events = False, ()
        try:
            frame = call(*given)
        except BaseException as error:
            self._failure = error
            raise
        self._failure = None
        self._is_running = frame.status is Status.RUNNING
        self._events = frame.events
        return frame

    def _observe(self, frame: Frame) -> dict[str, Any]:
        values = frame.observations
        assert values is not None, "the observations of a LAST step are those before it"
        self._last_values = values
        flat: dict[str, Any] = {}
        for names, value in zip(self._names, values, strict=True):
            if len(names) == 1:
                flat[names[0]] = value
            else:
                flat[names[0]] = value.reshape(-1)
                flat[names[1]] = np.array(value.shape, np.int32)
        if self._events_observation is not None:
            events = np.empty(len(frame.events), object)
            events[:] = [event_text(event) for event in frame.events]
            flat[self._events_observation] = events
        return self._nest(flat)

    def _nest(self, flat: dict[str, Any]) -> dict[str, Any]:
        return nesting.unflatten_dict(flat, nesting.SEPARATOR) if self._is_nested else flat


def _int32(name: str, value: Any, least: int = int(_INT32.min)) -> int:
    number: int = arguments.count(name, value, least=least, most=int(_INT32.max))
    return number


def _checked_shape(name: str, shape: Any) -> tuple[int, ...]:
    """Return a shape in which 0 stands for a variable length, as in EnvCApi."""
    sizes = tuple(shape) if isinstance(shape, Sequence) and not isinstance(shape, str) else None
    if sizes is None or not all(type(size) is int and (size > 0 or size == -1) for size in sizes):
        raise SpecError(
            f"shapes: the shape of {name!r} is {shape!r}; expected a sequence of positive "
            "integers, with -1 for each variable length"
        )
    return tuple(0 if size == -1 else size for size in sizes)


def _seeds(episode_seeds: Any) -> Iterator[int]:
    if episode_seeds is None:
        random = np.random.default_rng()
        return iter(lambda: int(random.integers(_INT32.max)), None)
    if isinstance(episode_seeds, int | np.integer):
        return itertools.count(_int32("the first seed", episode_seeds))
    if isinstance(episode_seeds, str) or not isinstance(episode_seeds, Iterable):
        raise SpecError(
            f"episode_seeds is {episode_seeds!r}; expected an integer, an iterable of integers, "
            "or None"
        )
    return iter(episode_seeds)


def event_text(event: Event) -> str:
    """Return an event as JSON, for agents that receive events as an observation.

    The object has `id`, `name` and `observations`: nested lists of numbers, and strings. As in
    protobuf's JSON format, nonfinite numbers are "NaN", "Infinity" and "-Infinity".
    """
    observations = [
        _finite(value.tolist()) if isinstance(value, np.ndarray) else value
        for value in event.observations
    ]
    return json.dumps({"id": event.id, "name": event.name, "observations": observations})


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(element) for element in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def environment_factory(
    library: str | os.PathLike[str],
    connect: str,
    *,
    version: str = "1.4",
    settings: Mapping[str, Any] = MappingProxyType({}),
    **kwargs: Any,
) -> Callable[..., dm_env.Environment]:
    """Return an environment factory for `dm_env_rpc_client.server.serve`.

    Every world has its own context in its own child process, so that a crash of the library is an
    error in one world only. The settings of CreateWorld are passed to the library, except for
    `seed`, the seed of the first episode, and `episode`, its ID. Both are incremented for each
    later episode.

    Args:
      library: the path of the library.
      connect: the name of its connect function, or an offset such as "+0x1234".
      version: the version of the library's env_c_api.h.
      settings: settings of the library; the settings of CreateWorld override them.
      **kwargs: further arguments of `EnvCApiEnvironment`.

    Raises:
      SpecError: there is no such file, the version is unknown, or the type of a setting is invalid.
      ModuleNotFoundError: the extra `c` is not installed.
    """
    layout(version)
    defaults = text_settings(settings)
    path = os.path.abspath(library)
    if not os.path.isfile(path):
        raise SpecError(f"there is no library {path}")

    def make(
        *, seed: int | None = None, episode: int = 0, **create_settings: Any
    ) -> EnvCApiEnvironment:
        return EnvCApiEnvironment(
            path,
            connect,
            version=version,
            settings={**defaults, **text_settings(create_settings)},
            episode_seeds=seed,
            first_episode=episode,
            isolated=True,
            **kwargs,
        )

    return make
