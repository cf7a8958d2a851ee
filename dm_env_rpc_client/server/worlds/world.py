"""The interfaces of hosted worlds (`World`, `Agent` and `Game`), and the order of step types.

A `World` is one simulation. Each connection that joins a world has an `Agent` with its own specs.
A `Session` implements the protocol. The values that it passes to worlds and agents are keyed by
name, whereas those in messages are keyed by UID.

Environment authors implement `Game`. A `SharedWorld` runs the game for the agents that join and
leave over the network, and never calls the game from two threads at once.

A sequence begins with the TimeStep that `reset` returns, continues with MID TimeSteps, and ends
with a LAST one. The methods of a TimeStep, such as `last`, compare its type as a number, so a
plain number is a valid type.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Collection, Hashable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import dm_env

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.server.errors import RequestError
from dm_env_rpc_client.server.properties import Properties
from dm_env_rpc_client.system.foreign_environments import class_name
from dm_env_rpc_client.system.owner_threads import Owner

_FIRST, _, _LAST = dm_env.StepType


def step_type_of(hosted: Any, method: str, timestep: dm_env.TimeStep) -> dm_env.StepType:
    """Return the type of a TimeStep.

    Args:
      hosted: the environment or game that returned it.
      method: the name of the method that returned it.
      timestep: the TimeStep.

    Raises:
      RuntimeError: its type is not one of dm_env's.
    """
    kind: Any = timestep.step_type
    if type(kind) is dm_env.StepType:
        return kind
    known = None
    with contextlib.suppress(TypeError, ValueError):  # An array has no single truth value.
        known = next((each for each in dm_env.StepType if kind == each), None)
    if known is not None:
        return known
    raise RuntimeError(
        f"{method} of {class_name(hosted)} returned a TimeStep of the type {kind!r}; expected "
        "dm_env.StepType.FIRST (0), MID (1) or LAST (2)"
    )


def begun(environment: Any, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
    """Return the first TimeStep of a sequence, with the type FIRST and no reward or discount.

    Args:
      environment: the environment.
      timestep: the result of its `reset`.

    Raises:
      RuntimeError: it is LAST, or its type is not one of dm_env's.
    """
    if step_type_of(environment, "reset", timestep) is _LAST:
        raise RuntimeError(
            f"reset of {class_name(environment)} returned a LAST TimeStep; a sequence begins with "
            "a FIRST one: return dm_env.restart(observation)"
        )
    return dm_env.restart(timestep.observation)


def next_step_type(environment: Any, timestep: dm_env.TimeStep) -> dm_env.StepType:
    """Return the type, MID or LAST, of a TimeStep that is not the first of its sequence.

    Args:
      environment: the environment.
      timestep: the result of its `step`.

    Raises:
      RuntimeError: it is FIRST, or its type is not one of dm_env's.
    """
    kind = step_type_of(environment, "step", timestep)
    if kind is _FIRST:
        raise RuntimeError(
            f"step of {class_name(environment)} returned a FIRST step in the middle of a sequence; "
            "end the sequence with dm_env.termination or dm_env.truncation, and begin the next "
            "one in reset"
        )
    return kind


Player = Hashable


class Game(abc.ABC):
    """A simulation for several players that act together.

    Each player has its own actions and observations, which are structures as in dm_env, nested or
    not. All players share one sequence, which begins for all of them at the same time. It may end
    for some players before it ends for the others; the former then wait for the next sequence.

    A game may have an attribute `properties`, a `Properties` that the joined clients can use.
    """

    is_lock_step: bool = True
    """Whether a step is taken only when all players have acted. If False, a step is taken each
    time a player acts."""

    default_actions: Mapping[str, Any] = MappingProxyType({})
    """Default values, by flat name, for actions that a player omits. Omitting any other action is
    an error."""

    @property
    @abc.abstractmethod
    def min_players(self) -> int:
        """The minimum number of players that a sequence needs.

        With fewer players, no sequence begins, and a running one is interrupted unless the player
        that left had received its LAST step.
        """

    @abc.abstractmethod
    def join(self, settings: Mapping[str, Any]) -> Player:
        """Add a player, possibly in the middle of a sequence.

        Args:
          settings: the settings of the agent's JoinWorld, keyed by flat name.

        Returns:
          A key that identifies the player in calls to the other methods.

        Raises:
          ValueError: the game is full, or a setting is invalid. The agent receives the error
            message.
        """

    @abc.abstractmethod
    def leave(self, player: Player) -> None:
        """Remove a player whose agent has left or whose client has disconnected."""

    @abc.abstractmethod
    def action_spec(self, player: Player) -> Any:
        """Return the specs of a player's actions, as `dm_env.Environment.action_spec` does."""

    @abc.abstractmethod
    def observation_spec(self, player: Player) -> Any:
        """Return the specs of a player's observations."""

    def reward_spec(self, player: Player) -> Any:
        """Return the spec of a player's reward: dm_env's default spec unless overridden."""
        return dm_env.Environment.reward_spec(self)

    def discount_spec(self, player: Player) -> Any:
        """Return the spec of a player's discount: dm_env's default spec unless overridden."""
        return dm_env.Environment.discount_spec(self)

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Apply the settings from a ResetWorld, effective from the next sequence.

        Args:
          settings: values by flat name.

        Raises:
          ValueError: a setting is unknown or invalid. In this case, the game must be unchanged.
        """
        if settings:
            raise ValueError(f"unknown setting {next(iter(settings))!r}; this game has no settings")

    @abc.abstractmethod
    def reset(self) -> None:
        """Begin a sequence with the current players."""

    @abc.abstractmethod
    def step(self, actions: Mapping[Player, Any]) -> None:
        """Advance the sequence.

        Args:
          actions: actions by player. In lock-step, they include every player that has
            received a step of this sequence and not its LAST one, but neither players that have
            just joined nor players that have reset their own sequence. Otherwise, they are the
            actions of one player.

        Raises:
          ValueError: an action is invalid. In this case, the game must be unchanged.
        """

    @abc.abstractmethod
    def timestep(self, player: Player) -> dm_env.TimeStep | None:
        """Return a player's TimeStep from the last `reset` or `step`.

        Args:
          player: a player that has joined and has not left.

        Returns:
          The TimeStep, which conforms to the player's specs. After a LAST TimeStep, the player no
          longer takes part in the sequence, and no other player waits for it; the sequence is over
          when no player takes part. For a player that does not take part, or not yet, the result
          is None or another LAST TimeStep. For a player that joined in the middle of a sequence,
          the server replaces the type, reward and discount with those of a FIRST step.
        """

    def close(self) -> None:  # noqa: B027  # most games have none
        """Free the resources of the game."""


_T = TypeVar("_T")

SEQUENCE_LOST = (
    "the sequence is over, but the step that ended it failed; send a Reset to begin a new one"
)


class Agent(abc.ABC):
    """The agent of one connection in a world. Its methods are called by one thread at a time.

    That is the owner's thread if the world is an `OwnedWorld` and the agent does not wait.

    Attributes:
      may_wait: whether `step` may wait for other agents, and so needs a thread of its own.
    """

    may_wait = True

    @property
    @abc.abstractmethod
    def specs(self) -> dm_env_rpc_pb2.ActionObservationSpecs:
        """The specs of actions and observations. Only `reset` and `World.reset` change them."""

    @abc.abstractmethod
    def step(
        self, actions: Mapping[str, Any] | None, requested: Collection[str]
    ) -> tuple[State, Mapping[str, Any]]:
        """Take a step for this agent.

        Args:
          actions: values by name, which conform to their specs; None for the first step of
            a sequence, in which actions are ignored.
          requested: the names of the observations to return.

        Returns:
          The state after the step and the requested observations by name.

        Raises:
          RequestError: the step is refused, and nothing has changed. This error is also raised if
            there are actions but no sequence is running, which happens when the answer that ended
            the sequence could not be sent: the client would mistake the first step of a new
            sequence for the next step of the old one.
        """

    @abc.abstractmethod
    def reset(self, settings: Mapping[str, Any]) -> None:
        """End the running sequence, if any, and apply settings, which are keyed by flat name."""

    @abc.abstractmethod
    def leave(self) -> None:
        """Leave the world. Called once, even if the client has disconnected."""


class World(abc.ABC):
    """A simulation whose methods can be called from any thread."""

    def access(self) -> contextlib.AbstractContextManager[Properties | None]:
        """Return a context that yields the world's properties, or None if it has none.

        No step is taken within the context.
        """
        return contextlib.nullcontext()

    def waiting_for(self) -> str:
        """Return the players missing from pending steps, or "" if no step is pending."""
        return ""

    @abc.abstractmethod
    def join(self, settings: Mapping[str, Any]) -> Agent:
        """Return a new agent that uses settings keyed by flat name, or raise RequestError."""

    @abc.abstractmethod
    def reset(self, settings: Mapping[str, Any], caller: Agent | None) -> None:
        """End the sequence of every agent, and apply settings, which are keyed by flat name.

        Returns when every agent other than `caller` has received an INTERRUPTED step.

        Args:
          settings: values by name.
          caller: the agent of the connection that sent the request, if it is joined to this
            world.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Free the resources of the world. Called when the world has no agents."""


class OwnedWorld(World):
    """A world whose environment or game is owned by one thread, which counts the worlds it owns.

    Threads that are not owners call `reset` and `close`; the world's own owner may also call
    `close`.

    Attributes:
      owner: the thread that owns it.
    """

    owner: Owner

    @property
    @abc.abstractmethod
    def answers(self) -> bool:
        """Whether the owner's thread answers the agents' requests.

        If True, no step waits for another agent.
        """

    @abc.abstractmethod
    def close(self, seconds: float | None = None) -> None:
        """Free the resources of the world.

        Args:
          seconds: the time limit for calls that the owner is executing; None for no limit.

        Raises:
          TimeoutError: the world will be closed later.
        """


def close_owned(
    owner: Owner,
    close: Callable[[], _T],
    seconds: float | None,
    is_closing: Callable[[], bool] = lambda: False,
) -> _T:
    """Make an owner close an object, as `OwnedWorld.close` does.

    Args:
      owner: the owner.
      close: closes the object.
      seconds: as for `OwnedWorld.close`.
      is_closing: whether the owner is already closing the object; this function then waits without
        a limit.
    """
    # The limit is for calls queued before: `close` of an environment may itself take long.
    closing = owner.begin(close)
    if seconds is not None and not closing.wait_begun(seconds) and not is_closing():
        raise still_in_a_step()
    return closing.result()  # type: ignore[no-any-return]  # of `close`


def was_closed() -> RequestError:
    """Return the error for a request to a world that has been closed in the meantime."""
    return RequestError.not_now("the world was closed")


def still_in_a_step() -> TimeoutError:
    """Return the error for a world that cannot be closed in time."""
    return TimeoutError("the environment is still in a step, and will be closed when the step ends")
