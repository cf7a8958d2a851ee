"""`World` and `Agent`: the interfaces of what a server hosts.

A `World` is one simulation. Each connection that joins it has an `Agent`, with specs of its own.
A `Session` speaks the protocol and calls them with values by name, not messages by UID.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.server.properties.offered import Properties
from dm_env_rpc_client.server.request_errors import RequestError
from dm_env_rpc_client.system.owners import Owner

_T = TypeVar("_T")

SEQUENCE_LOST = (
    "the sequence is over, but the step that ended it failed; send a Reset to begin a new one"
)


class Agent(abc.ABC):
    """The agent of one connection in a world. It is called from one thread at a time.

    That is the owner's if its world is an `OwnedWorld` and it does not wait.

    Attributes:
      may_wait: whether `step` may wait for other agents, so that it takes a thread of its own.
    """

    may_wait = True

    @property
    @abc.abstractmethod
    def specs(self) -> dm_env_rpc_pb2.ActionObservationSpecs:
        """The specs of actions and observations; only `reset` and `World.reset` change them."""

    @abc.abstractmethod
    def step(
        self, actions: Mapping[str, Any] | None, requested: Collection[str]
    ) -> tuple[State, Mapping[str, Any]]:
        """Takes a step.

        Args:
          actions: values by name, which conform to their specs; None for the first step of
            a sequence, in which actions are ignored.
          requested: the names of the observations to return.

        Returns:
          The state after the step and the requested observations by name.

        Raises:
          RequestError: the step is refused, and nothing has changed. Also if there are
            actions but no sequence is running, which happens when the answer that ended the
            sequence could not be sent: the client would take the first step of a new
            sequence for the next step of the old one.
        """

    @abc.abstractmethod
    def reset(self, settings: Mapping[str, Any]) -> None:
        """Ends the sequence, if one is running, and applies flat settings by name."""

    @abc.abstractmethod
    def leave(self) -> None:
        """Leaves the world. Called once, also when the client disconnects."""


class World(abc.ABC):
    """One simulation. It is called from any thread."""

    def access(self) -> contextlib.AbstractContextManager[Properties | None]:
        """Returns a context with the world's properties, or None, in which no step is taken."""
        return contextlib.nullcontext()

    def waiting_for(self) -> str:
        """Returns what steps that agents have sent wait for; "" if none waits."""
        return ""

    @abc.abstractmethod
    def join(self, settings: Mapping[str, Any]) -> Agent:
        """Returns a new agent, made with flat settings by name; RequestError if it is refused."""

    @abc.abstractmethod
    def reset(self, settings: Mapping[str, Any], caller: Agent | None) -> None:
        """Ends the sequence of every agent and applies flat settings by name.

        Returns when every agent other than `caller` has received an INTERRUPTED step.

        Args:
          settings: values by name.
          caller: the agent of the connection that sent the request, if it is joined to this
            world.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Frees the resources of the world. Called when it has no agents."""


class OwnedWorld(World):
    """A world whose environment or game belongs to one thread, which counts it as held.

    `reset` and `close` are called by threads that are no owners, `close` also by its own.

    Attributes:
      owner: that thread.
    """

    owner: Owner

    @property
    @abc.abstractmethod
    def answers(self) -> bool:
        """Whether the owner answers the agents: their steps wait for nobody."""

    @abc.abstractmethod
    def close(self, seconds: float | None = None) -> None:
        """Frees the resources of the world.

        Args:
          seconds: how long to wait for calls that the owner is executing; None for no limit.

        Raises:
          TimeoutError: the world is closed later.
        """


def close_owned(owner: Owner, close: Callable[[], _T], seconds: float | None) -> _T:
    """Has an owner close something, as `OwnedWorld.close`."""
    closing = owner.begin(close)
    if seconds is not None and not closing.wait_begun(seconds):
        raise still_in_a_step()
    return closing.result()  # type: ignore[no-any-return]  # of `close`


def was_closed() -> RequestError:
    """Returns the error of a request to a world that was closed meanwhile."""
    return RequestError.not_now("the world was closed")


def still_in_a_step() -> TimeoutError:
    """Returns the error of a world that cannot be closed in time."""
    return TimeoutError("the environment is still in a step, and is not closed before that ends")
