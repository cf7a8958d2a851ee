"""A runner that calls a library's functions in the order that EnvCApi requires."""

from __future__ import annotations

import dataclasses
import errno
import fnmatch
import time
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from dm_env_rpc_client.bridges.env_c_api import declarations
from dm_env_rpc_client.bridges.env_c_api.context import Context, Status
from dm_env_rpc_client.bridges.env_c_api.description import (
    ContinuousAction,
    Description,
    DiscreteAction,
    Event,
    ObservationDescription,
    ObservationType,
    checked_size,
)
from dm_env_rpc_client.bridges.env_c_api.library import Opening, open_context
from dm_env_rpc_client.errors import LibraryError, ProtocolError, SpecError

START_PAUSE_SECONDS = 0.001
"""The pause, in seconds, before the second attempt to start an episode. The pause
doubles with each further attempt."""


class Actions(NamedTuple):
    """All action values of each kind, in the library's order, or None if the kind is unchanged."""

    discrete: Sequence[int] | None
    continuous: Sequence[float] | None
    texts: Sequence[str] | None


class Frame(NamedTuple):
    """The result of `start` or `advance`.

    Attributes:
      status: Running, Terminated or Interrupted.
      reward: the reward of the advance; 0.0 after `start`.
      observations: the values of the requested observations, in order; None if the status is not
        Running, since the interface then forbids observing.
      events: the events since the last advance; empty if the status is not Running.
    """

    status: Status
    reward: float
    observations: list[Any] | None
    events: tuple[Event, ...]


class LocalRunner:
    """A runner for an environment in the current process; it is not thread-safe.

    The context is released exactly once, even if the runner is garbage-collected or the interpreter
    exits.

    Args:
      opening: the library and its environment.

    Attributes:
      description: the environment's description.
      close: releases the environment; a second call does nothing.
      read_property, write_property, list_property: the methods of `Context`.

    Raises:
      SpecError: an argument is invalid, or the library refuses a setting.
      LibraryError: the connect function or `init` failed.
      ProtocolError: the library breaks the interface.
    """

    def __init__(self, opening: Opening):
        self._context = context = open_context(opening)
        self.close = weakref.finalize(self, context.release)
        self._start_attempts = opening.start_attempts
        try:
            for key, value in opening.settings.items():
                context.setting(key, value)
            context.init()
            self.description, indices = _describe(context, opening.observations, opening.shapes)
        except BaseException:
            self.close()
            raise
        numbers = {type_: n for n, type_ in context.layout.observation_types.items()}
        # Index of each observation, and its fixed parts for `Context.fixed_observation`.
        self._plan = []
        for index, one in zip(indices, self.description.observations, strict=True):
            dtype = one.type.value
            fixed = (numbers[one.type], list(one.shape or ()), dtype, one.fixed_bytes)
            self._plan.append((index, one, fixed if one.fixed_bytes else None))
        self._variable_bytes = context.limits.message_bytes - self.description.fixed_bytes
        self.read_property = context.read_property
        self.write_property = context.write_property
        self.list_property = context.list_property

    def start(self, episode: int, seed: int) -> Frame:
        """Start an episode and return its first frame, or raise LibraryError on failure."""
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
            f"the library returned EAGAIN {self._start_attempts} times; its last "
            f"message: {self._context.error_message()}",
        )

    def advance(self, actions: Actions, steps: int) -> Frame:
        """Set actions and advance the environment, or raise LibraryError if the status is Error.

        Call this method only while the last status is Running.
        """
        context = self._context
        discrete, continuous, texts = actions
        if discrete is not None:
            context.act_discrete(discrete)
        if continuous is not None:
            context.act_continuous(continuous)
        if texts is not None:
            context.act_text(texts)
        return self._frame(*context.advance(steps))

    def _frame(self, status: Status, reward: float) -> Frame:
        """Copy observations and events, which the library keeps only until the next call."""
        if status is not Status.RUNNING:
            return Frame(status, reward, None, ())
        context, budget = self._context, self._variable_bytes
        observations = []
        for index, described, fixed in self._plan:
            value = None if fixed is None else context.fixed_observation(index, *fixed)
            if value is None:
                value = self._observation(index, described, budget)
                budget -= declarations.size_of(value)
            observations.append(value)
        count = context.event_count()
        return Frame(status, reward, observations, self._events(count) if count else ())

    def _observation(self, index: int, described: ObservationDescription, budget: int) -> Any:
        where = f"observation {described.name!r}"
        value = self._context.observation(index, budget, where)
        if not described.value_conforms(value):
            is_text = isinstance(value, str)
            found = "a string" if is_text else f"{value.dtype} of shape {value.shape}"
            raise ProtocolError(
                f"{where} is {found}; expected {described.type.name} of shape {described.shape} "
                f"(0 means any length), {described.source}"
            )
        return value

    def _events(self, count: int) -> tuple[Event, ...]:
        budget, events = self._context.limits.message_bytes, []
        for index in range(count):
            event = self._context.event(index, self.description.events, budget)
            budget -= sum(map(declarations.size_of, event.observations))
            events.append(event)
        return tuple(events)


def _describe(
    context: Context, wanted: Collection[str] | None, shapes: Mapping[str, Sequence[int]]
) -> tuple[Description, Sequence[int]]:
    """Return the description after `init`, and the indices of the observations to read."""

    def named(kind: str) -> list[str]:
        return [context.name(f"{kind}_name", i) for i in range(context.count(f"{kind}_count"))]

    kinds = ("action_discrete", "action_continuous", "action_text", "observation", "event_type")
    discrete, continuous, texts, names, events = map(named, kinds)
    unknown = set(wanted or ()) - set(names)
    if unknown:
        raise SpecError(
            f"there is no observation {min(unknown)!r}; known observations: "
            f"{', '.join(map(repr, names))}"
        )
    indices = [i for i, name in enumerate(names) if wanted is None or name in wanted]
    declared = [
        ObservationDescription(names[index], *context.observation_spec(index)) for index in indices
    ]
    description = Description(
        name=context.name("environment_name"),
        discrete=tuple(
            DiscreteAction(name, *context.action_bounds("discrete", i))
            for i, name in enumerate(discrete)
        ),
        continuous=tuple(
            ContinuousAction(name, *context.action_bounds("continuous", i))
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
            f"the observations together take {description.fixed_bytes} bytes; at most {most} are "
            "allowed (Limits.message_bytes)"
        )
    return description, indices


def _with_shapes(
    declared: Sequence[ObservationDescription],
    shapes: Mapping[str, Sequence[int]],
    names: Collection[str],
    most: int,
) -> tuple[ObservationDescription, ...]:
    """Set the shapes of observations for which the library declares no shape.

    Args:
      declared: the observations to read.
      shapes: the shapes, by name or pattern.
      names: the names of all observations.
      most: the maximum size of an observation, in bytes.
    """
    described = list(declared)
    for pattern, shape in shapes.items():
        matches = {pattern} if pattern in names else set(fnmatch.filter(names, pattern))
        if not matches:
            raise SpecError(
                f"shapes: no observation matches {pattern!r}; known observations: "
                f"{', '.join(map(repr, names))}"
            )
        for index, one in enumerate(described):
            if one.name not in matches or one.is_given:
                continue
            if one.shape is None and one.type is not ObservationType.STRING:
                checked_size(shape, one.type.item_bytes, most, f"observation {one.name!r}")
                described[index] = dataclasses.replace(one, shape=tuple(shape), is_given=True)
            elif one.name == pattern:
                raise SpecError(
                    f"shapes: the library itself declares the shape of {pattern!r} as {one.shape}; "
                    f"remove {pattern!r} from shapes"
                )
    return tuple(described)
