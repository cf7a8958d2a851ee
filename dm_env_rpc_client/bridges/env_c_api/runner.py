"""Runs the environment of a library, in the order of calls that the interface requires.

`EnvCApiEnvironment` drives a `Runner`, in this process or in a child process.
"""

from __future__ import annotations

import abc
import dataclasses
import errno
import fnmatch
import time
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from dm_env_rpc_client.bridges.env_c_api.context import Context, FixedObservation, Status
from dm_env_rpc_client.bridges.env_c_api.description import (
    ContinuousAction,
    Description,
    DiscreteAction,
    ObservationDescription,
    ObservationType,
    checked_size,
)
from dm_env_rpc_client.bridges.env_c_api.events import Event
from dm_env_rpc_client.bridges.env_c_api.library_properties import PropertyAttributes
from dm_env_rpc_client.errors import LibraryError, ProtocolError, SpecError

__all__ = ["Actions", "Frame", "LocalRunner", "Runner"]

START_PAUSE_SECONDS = 0.001
"""The pause before the second attempt to start; it doubles with each attempt."""


class Actions(NamedTuple):
    """Values for all actions of a kind, in the library's order; None for no change."""

    discrete: Sequence[int] | None
    continuous: Sequence[float] | None
    texts: Sequence[str] | None


class Frame(NamedTuple):
    """The result of `start` or `advance`.

    Attributes:
      status: Running, Terminated or Interrupted.
      reward: the reward of the advance; 0.0 after `start`.
      observations: the values of the requested observations, in their order; None if the
        status is not Running, since the interface then forbids to observe.
      events: the events since the last advance; empty if the status is not Running.
    """

    status: Status
    reward: float
    observations: list[Any] | None
    events: tuple[Event, ...]


class Runner(abc.ABC):
    """An environment that is ready to start an episode. Not thread-safe."""

    description: Description

    @abc.abstractmethod
    def start(self, episode: int, seed: int) -> Frame:
        """Starts an episode and returns its first frame."""

    @abc.abstractmethod
    def advance(self, actions: Actions, steps: int) -> Frame:
        """Sets actions and advances; only while the last status was Running."""

    @abc.abstractmethod
    def read_property(self, key: str) -> str:
        """Reads a property."""

    @abc.abstractmethod
    def write_property(self, key: str, value: str) -> None:
        """Writes a property."""

    @abc.abstractmethod
    def list_property(self, key: str) -> dict[str, PropertyAttributes]:
        """Lists the properties directly below one."""

    @abc.abstractmethod
    def close(self) -> None:
        """Releases the environment; a second time does nothing."""


class LocalRunner(Runner):
    """Runs a context in this process.

    Args:
      context: a new context. The runner owns it and releases it exactly once, also if the
        runner is garbage-collected or an argument is invalid.
      settings: applied before `init`.
      observations: the names of the observations to read; None for all.
      shapes: the shapes of observations whose library leaves them open, by name or pattern, with
        0 for a length that changes.
      start_attempts: the maximum number of calls of `start` for one episode while it returns
        EAGAIN.

    Raises:
      SpecError: the library refuses a setting.
      LibraryError: `init` failed.
      ProtocolError: the library's description of itself breaks the interface.
    """

    def __init__(
        self,
        context: Context,
        settings: Mapping[str, str],
        observations: Collection[str] | None,
        shapes: Mapping[str, Sequence[int]],
        start_attempts: int,
    ):
        self._context = context
        # Runs when the runner is garbage-collected, and at the exit of the interpreter.
        self._release = weakref.finalize(self, context.release)
        self._start_attempts = start_attempts
        try:
            for key, value in settings.items():
                context.setting(key, value)
            context.init()
            self.description, indices = _describe(context, observations, shapes)
        except BaseException:
            self._release()
            raise
        numbers = {type_: n for n, type_ in context.layout.observation_types.items()}
        self._plan = [
            (index, described, _fixed(described, numbers[described.type]))
            for index, described in zip(indices, self.description.observations, strict=True)
        ]
        self._most_bytes = context.limits.message_bytes
        self._variable_bytes = self._most_bytes - self.description.fixed_bytes

    def start(self, episode: int, seed: int) -> Frame:
        """See `Runner.start`; LibraryError if it fails."""
        pause = START_PAUSE_SECONDS
        for attempt in range(self._start_attempts):
            if attempt:
                time.sleep(pause)
                pause *= 2
            if self._context.start(episode, seed):
                return self._frame(Status.RUNNING, 0.0)
        raise LibraryError(
            "start",
            errno.EAGAIN,
            f"it returned EAGAIN {self._start_attempts} times; its last "
            f"message: {self._context.error_message()}",
        )

    def advance(self, actions: Actions, steps: int) -> Frame:
        """See `Runner.advance`; LibraryError if the status is Error."""
        context = self._context
        discrete, continuous, texts = actions
        if discrete is not None:
            context.act_discrete(discrete)
        if continuous is not None:
            context.act_continuous(continuous)
        if texts is not None:
            context.act_text(texts)
        return self._frame(*context.advance(steps))

    def read_property(self, key: str) -> str:
        """See `Runner.read_property`."""
        return self._context.read_property(key)

    def write_property(self, key: str, value: str) -> None:
        """See `Runner.write_property`."""
        self._context.write_property(key, value)

    def list_property(self, key: str) -> dict[str, PropertyAttributes]:
        """See `Runner.list_property`."""
        return self._context.list_property(key)

    def close(self) -> None:
        """See `Runner.close`."""
        self._release()

    def _frame(self, status: Status, reward: float) -> Frame:
        """Copies observations and events, which are valid until the next call while Running."""
        if status is not Status.RUNNING:
            return Frame(status, reward, None, ())
        context, budget = self._context, self._variable_bytes
        observations = []
        for index, described, fixed in self._plan:
            if fixed is not None:
                observations.append(context.fixed_observation(index, fixed))
                continue
            where = f"observation {described.name!r}"
            value = context.observation(index, budget, where)
            if not described.value_conforms(value):
                raise ProtocolError(
                    f"{where}: is {_kind(value)}; expected {described.type.name} of shape "
                    f"{described.shape} (0 is any length), {described.source}"
                )
            budget -= len(value) if isinstance(value, str) else value.nbytes
            observations.append(value)
        count = context.event_count()
        return Frame(status, reward, observations, self._events(count) if count else ())

    def _events(self, count: int) -> tuple[Event, ...]:
        budget, events = self._most_bytes, []
        for index in range(count):
            event = self._context.event(index, self.description.events, budget)
            for value in event.observations:
                budget -= len(value) if isinstance(value, str) else value.nbytes
            events.append(event)
        return tuple(events)


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "a string"
    return f"{value.dtype} of shape {value.shape}"


def _fixed(described: ObservationDescription, type_number: int) -> FixedObservation | None:
    if not described.fixed_bytes or described.shape is None:
        return None
    return FixedObservation(
        type_number,
        list(described.shape),
        described.type.value,
        described.fixed_bytes,
        f"observation {described.name!r}",
        described.source,
    )


def _describe(
    context: Context, wanted: Collection[str] | None, shapes: Mapping[str, Sequence[int]]
) -> tuple[Description, Sequence[int]]:
    """Returns the description, known after `init`, and the indices of the observations to read."""
    discrete, continuous, texts, names, events = (
        [context.name(f"{what}_name", i) for i in range(context.count(f"{what}_count"))]
        for what in (
            "action_discrete",
            "action_continuous",
            "action_text",
            "observation",
            "event_type",
        )
    )
    unknown = set(wanted or ()) - set(names)
    if unknown:
        raise SpecError(
            f"there is no observation {min(unknown)!r}; there are {', '.join(map(repr, names))}"
        )
    indices = [i for i, name in enumerate(names) if wanted is None or name in wanted]
    declared = [
        ObservationDescription(names[index], *context.observation_spec(index)) for index in indices
    ]
    description = Description(
        name=context.environment_name(),
        discrete=tuple(
            DiscreteAction(name, *context.action_discrete_bounds(i))
            for i, name in enumerate(discrete)
        ),
        continuous=tuple(
            ContinuousAction(name, *context.action_continuous_bounds(i))
            for i, name in enumerate(continuous)
        ),
        texts=tuple(texts),
        observations=_with_shapes(declared, shapes, names, context.limits.message_bytes),
        events=tuple(events),
        fps=context.fps(),
    )
    most = context.limits.message_bytes
    if description.fixed_bytes > most:
        raise ProtocolError(
            f"the observations take {description.fixed_bytes} bytes together; at most {most} are "
            "allowed (Limits.message_bytes)"
        )
    return description, indices


def _with_shapes(
    declared: Sequence[ObservationDescription],
    shapes: Mapping[str, Sequence[int]],
    names: Collection[str],
    most: int,
) -> tuple[ObservationDescription, ...]:
    """Gives shapes, by name or pattern, to observations whose library leaves them open.

    Args:
      declared: the observations to read.
      shapes: the shapes.
      names: the names of all observations.
      most: bytes that an observation may take.
    """
    described = list(declared)
    for pattern, shape in shapes.items():
        matches = {pattern} if pattern in names else set(fnmatch.filter(names, pattern))
        if not matches:
            raise SpecError(
                f"shapes: no observation matches {pattern!r}; there are "
                f"{', '.join(map(repr, names))}"
            )
        for index, one in enumerate(described):
            if one.name not in matches or one.is_given:
                continue
            if one.shape is None and one.type is not ObservationType.STRING:
                checked_size(shape, one.type.value.itemsize, most, f"observation {one.name!r}")
                described[index] = dataclasses.replace(one, shape=tuple(shape), is_given=True)
            elif one.name == pattern:
                raise SpecError(
                    f"shapes: the library declares the shape of {pattern!r} itself: {one.shape}"
                )
    return tuple(described)
