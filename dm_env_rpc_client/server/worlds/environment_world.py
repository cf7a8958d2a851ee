"""A world that hosts one dm_env.Environment, for one agent at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeGuard

import dm_env

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.server.errors import RequestError
from dm_env_rpc_client.server.properties import Properties, properties_of
from dm_env_rpc_client.server.thread_bound import OwnedEnvironment
from dm_env_rpc_client.server.waiting import wait_for
from dm_env_rpc_client.server.worlds.flat_specs import FlatSpecs, end_state
from dm_env_rpc_client.server.worlds.world import (
    SEQUENCE_LOST,
    Agent,
    OwnedWorld,
    begun,
    close_owned,
    next_step_type,
    still_in_a_step,
    was_closed,
)
from dm_env_rpc_client.system.foreign_environments import check_time_step
from dm_env_rpc_client.system.owner_threads import Owner, OwnerGoneError
from dm_env_rpc_client.tensors import nesting

# Found faster than members of enums; see `protocol/lifecycle.py`.
_RUNNING = State.RUNNING
_MID = dm_env.StepType.MID


class TakesSettings(Protocol):
    """An environment that itself applies some of the settings in its agent's Reset.

    Attributes:
      reset_settings: the names of these settings; all others are passed to the factory. None
        stands for all settings; `configure` is then called in every Reset, even without settings.
    """

    reset_settings: Collection[str] | None

    def configure(self, settings: Mapping[str, Any]) -> Callable[[], object] | None:
        """Apply settings, effective from the next sequence. The settings may change the specs.

        Args:
          settings: some of `reset_settings`; names with periods are nested dictionaries.

        Returns:
          A function that undoes the change, called if another row of the batch refuses its
          settings; or None.

        Raises:
          ValueError: a setting is invalid. The client receives the error message.
        """


def takes_settings(environment: Any) -> TypeGuard[TakesSettings]:
    """Return whether an environment, or the one that it wraps, applies settings from a Reset."""
    return hasattr(environment, "reset_settings") and hasattr(environment, "configure")


class _Made(NamedTuple):
    """An environment, its flat specs, and the settings with which it was created."""

    environment: dm_env.Environment
    flat_specs: FlatSpecs
    settings: Mapping[str, Any]


class _Interruption(NamedTuple):
    """A ResetWorld that is reported to the agent in its next step.

    Attributes:
      settings: the settings of the ResetWorld.
      made: the new environment; None if there were no settings.
    """

    settings: Mapping[str, Any]
    made: _Made | None


class _Closed(dm_env.Environment):
    """A placeholder for a closed environment whose replacement could not be created."""

    def reset(self) -> dm_env.TimeStep:
        raise RequestError.not_now(
            "the environment was closed to apply new settings, but no environment could be "
            "created with either the new or the former settings; destroy this world and create a "
            "new one"
        )

    step = action_spec = observation_spec = reset


class EnvironmentWorld(OwnedWorld):
    """A world that hosts an environment created by a factory from the world's settings.

    The settings of a reset override those with which the world was created, and the factory makes
    a new environment with them, except for those that the environment applies itself
    (`TakesSettings`).

    The world is made and used in the thread of its owner, so that it needs no lock. A ResetWorld
    that must wait for the agent waits in another thread.

    Args:
      owner: the thread that owns the world; the current one.
      make: makes environments from such settings.
      environment: the first environment. The world closes it.
      settings: flat settings by name, as received with CreateWorld.
      default_actions: values, by flat name, for actions that a step omits, in addition to the
        environment's own attribute of this name. All other actions must be sent in every step.
      allowed: the names that clients may call, and the names that they may set.
      singleton: whether an environment is closed before another is made in its place.
    """

    answers = True

    def __init__(
        self,
        owner: Owner,
        make: Callable[[Mapping[str, Any]], dm_env.Environment],
        environment: dm_env.Environment,
        settings: Mapping[str, Any],
        default_actions: Mapping[str, Any],
        allowed: tuple[Sequence[str], Sequence[str]] = ((), ()),
        singleton: bool = False,
    ):
        self.owner = owner
        self._make = make
        self._allowed = allowed
        self._singleton = singleton
        self._default_actions = default_actions
        self._made = self._with_flat_specs(environment, settings)
        self._agent: _EnvironmentAgent | None = None
        self._is_running = False
        self._timestep: dm_env.TimeStep
        # Set when another connection has reset the world: the agent's next step must return
        # INTERRUPTED.
        self._interruption: _Interruption | None = None
        # Notified when an interruption is over, or when the world is to be closed.
        self._changed = threading.Condition()
        self._is_closed = False
        self._is_open = True
        self._has_closed = threading.Event()
        owner.hold()

    def join(self, settings: Mapping[str, Any]) -> Agent:
        if settings:
            raise RequestError.invalid(
                f"unknown join settings {', '.join(map(repr, settings))}: this environment "
                "accepts settings when its world is created, not when it is joined"
            )
        # dm_env has one agent; a second one would step the same environment.
        if self._agent is not None:
            raise RequestError.not_now(
                "the world already has an agent and accepts only one at a time; create another "
                "world"
            )
        self._agent = _EnvironmentAgent(self)
        return self._agent

    def reset(self, settings: Mapping[str, Any], caller: Agent | None) -> None:
        # Repeated, since another ResetWorld may be pending first.
        while True:
            try:
                interruption = self.owner.call(self._interrupt, settings, caller)
            except OwnerGoneError as error:
                raise was_closed() from error
            if interruption is None:
                return
            self._wait_for_end_of(interruption)
            if interruption.settings is settings:
                return

    def _wait_for_end_of(self, interruption: _Interruption) -> None:
        with self._changed:
            wait_for(
                self._changed, lambda: self._interruption is not interruption or self._is_closed
            )

    def _interrupt(self, settings: Mapping[str, Any], caller: Agent | None) -> _Interruption | None:
        """Reset the world, and return the interruption to wait for, or None if there is none.

        The interruption can belong to an earlier reset, which must finish first.
        """
        if self._is_closed:
            raise was_closed()
        if self._interruption is not None:
            if caller is None or caller is not self._agent:
                return self._interruption
            # The agent resets the world, too; the two resets would wait for each other.
            self._finish_interruption()
        # Made before anything ends: except with `singleton`, invalid settings leave the sequence
        # running.
        made = self._make_again(settings)
        if made is not None and self._agent and made.flat_specs.specs != self._agent.specs:
            self._discard(made)
            raise RequestError.not_now(
                "these settings change the specs, and a ResetWorld cannot send new specs to "
                "the joined agent; send the settings with the agent's own Reset"
            )
        # No other agent is in a sequence, so that no step has to report the reset.
        if self._agent is None or self._agent is caller or not self._is_running:
            self._end_sequence(made)
            return None
        self._interruption = _Interruption(settings, made)
        return self._interruption

    @contextlib.contextmanager
    def access(self) -> Iterator[Properties | None]:
        environment = self._made.environment
        if isinstance(environment, OwnedEnvironment):
            yield environment.owned_properties(self._allowed)
        else:
            yield properties_of(environment, self._allowed)

    def close(self, seconds: float | None = None) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        # If an agent is left, its `leave` closes the environment, which may take longer than the
        # limit for a step.
        has_closed = close_owned(self.owner, self._close, seconds, lambda: not self._is_open)
        if not has_closed and not self._has_closed.wait(seconds):
            if self._is_open:
                raise still_in_a_step()
            self._has_closed.wait()

    def _close(self) -> bool:
        """Close the environment if the world has no agent, and return whether it is closed."""
        if self._agent is None:
            self._close_environment()
        return self._agent is None

    def _close_environment(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        try:
            self._made.environment.close()
        finally:
            self._has_closed.set()
            self.owner.release()

    def _configured(self, settings: Mapping[str, Any]) -> _Made | None:
        """Return the environment with the settings applied, or None if there are no settings."""
        environment = self._made.environment
        # Settings by these names belong to the environment; all others to its constructor.
        names = environment.reset_settings if takes_settings(environment) else ()
        own = {
            name: value
            for name, value in settings.items()
            if names is None or name.partition(nesting.SEPARATOR)[0] in names
        }
        made = self._make_again({k: v for k, v in settings.items() if k not in own})
        if not own and names is not None:
            return made
        environment = (made or self._made).environment
        try:
            assert takes_settings(environment), "one factory makes one kind"
            try:
                environment.configure(nesting.unflatten_dict(own, nesting.SEPARATOR))
            except ValueError as error:
                raise RequestError.invalid(
                    f"the environment does not take these settings: {error}"
                ) from error
            flat_specs = self._flat_specs(environment)
        except BaseException:
            if made is not None:
                # The world has not adopted the new environment; nothing else would close it.
                self._discard(made)
            raise
        return (made or self._made)._replace(flat_specs=flat_specs)

    def _finish_interruption(self) -> None:
        assert self._interruption is not None
        try:
            self._end_sequence(self._interruption.made)
        finally:
            with self._changed:
                self._interruption = None
                self._changed.notify_all()

    def _end_sequence(self, made: _Made | None) -> None:
        self._is_running = False
        if made is not None:
            former, self._made = self._made, made
            # Replaced first: the settings are in force even if closing the former one fails.
            if made.environment is not former.environment:
                former.environment.close()
            elif hasattr(made.environment, "close_replaced"):
                made.environment.close_replaced()

    def _make_again(self, settings: Mapping[str, Any]) -> _Made | None:
        if not settings:
            return None
        settings = {**self._made.settings, **settings}
        if not self._singleton:
            return self._with_flat_specs(self._make(settings), settings)
        former = self._made
        self._made = former._replace(environment=_Closed())
        # Before the new one is made: the process can hold only one.
        former.environment.close()
        try:
            return self._with_flat_specs(self._make(settings), settings)
        except BaseException:
            self._restore(former)
            raise

    def _discard(self, made: _Made) -> None:
        """Close a newly created environment that the world does not adopt."""
        made.environment.close()
        if self._singleton:
            self._restore(self._made)

    def _restore(self, former: _Made) -> None:
        """Recreate an environment with its former settings, without resuming its sequence."""
        self._is_running = False
        self._made = self._with_flat_specs(self._make(former.settings), former.settings)

    def _with_flat_specs(
        self, environment: dm_env.Environment, settings: Mapping[str, Any]
    ) -> _Made:
        try:
            flat_specs = self._flat_specs(environment)
        except BaseException:
            environment.close()
            raise
        return _Made(environment, flat_specs, settings)

    def _flat_specs(self, environment: dm_env.Environment) -> FlatSpecs:
        own = getattr(environment, "default_actions", {})
        flat_specs = FlatSpecs.of(environment, {**own, **self._default_actions})
        unknown = set(self._default_actions) - set(flat_specs.action_names)
        if unknown:
            raise SpecError(f"default action {min(unknown)!r} is not an action of the environment")
        return flat_specs


class _EnvironmentAgent(Agent):
    """The agent of an EnvironmentWorld.

    Its methods are called in the owner's thread, because they use the world's attributes.
    """

    may_wait = False

    def __init__(self, world: EnvironmentWorld):
        self._world = world

    @property
    def specs(self) -> dm_env_rpc_pb2.ActionObservationSpecs:
        return self._world._made.flat_specs.specs

    def step(
        self, actions: Mapping[str, Any] | None, requested: Collection[str]
    ) -> tuple[State, Mapping[str, Any]]:
        world = self._world
        environment, flat_specs, _ = world._made
        if world._interruption is not None:
            observations = flat_specs.flat_observations(world._timestep, requested)
            world._finish_interruption()
            return State.INTERRUPTED, observations
        if actions is None:
            timestep = environment.reset()
        elif world._is_running:
            timestep = environment.step(flat_specs.nested_action(actions))
        else:
            raise RequestError.not_now(SEQUENCE_LOST)
        try:
            is_running = True
            if actions is None:
                timestep = begun(environment, timestep)
            elif timestep.step_type is not _MID:
                is_running = next_step_type(environment, timestep) is _MID
            world._timestep = timestep
            world._is_running = is_running
            observations = flat_specs.flat_observations(timestep, requested)
            if is_running:
                return _RUNNING, observations
            return end_state(timestep), observations
        # A result that is no TimeStep: checked only after it failed, so that valid ones cost
        # nothing.
        except AttributeError:
            check_time_step(environment, "reset" if actions is None else "step", timestep)
            raise

    def reset(self, settings: Mapping[str, Any]) -> None:
        world = self._world
        if world._interruption is not None:
            world._finish_interruption()
        world._end_sequence(world._configured(settings))

    def leave(self) -> None:
        world = self._world
        world._agent = None
        try:
            if world._interruption is not None:
                world._finish_interruption()
            world._end_sequence(None)
        finally:
            # `close` found the agent still here, and left the environment to it.
            if world._is_closed:
                world._close_environment()
