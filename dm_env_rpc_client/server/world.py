"""What a server hosts: worlds, and the agents that join them.

A `World` is one simulation. Whoever joins it becomes an `Agent`, with specs of its own.
Sessions speak the protocol for them; here are values by name, not messages by UID.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Collection, Mapping
from typing import Any

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.server.offered_properties import Properties

__all__ = ["SEQUENCE_LOST", "Agent", "World"]

SEQUENCE_LOST = (
    "the sequence is over, but the step that ended it failed; send a Reset to begin another"
)


class Agent(abc.ABC):
    """One connection's part in a world. Its calls come from one thread at a time."""

    @property
    @abc.abstractmethod
    def specs(self) -> dm_env_rpc_pb2.ActionObservationSpecs:
        """The actions and observations; they change only in `reset` and `World.reset`."""

    @abc.abstractmethod
    def step(
        self, actions: Mapping[str, Any] | None, requested: Collection[str]
    ) -> tuple[State, Mapping[str, Any]]:
        """Takes a step.

        Args:
          actions: values by name, which conform to their specs; None where a new sequence
            begins, to which actions mean nothing.
          requested: the names of the observations to return.

        Returns:
          The state after the step and the requested observations by name.

        Raises:
          RequestError: the step cannot be taken; nothing has changed. Also where there are
            actions and no sequence for them, because the answer that ended it could not
            be sent: what begins unasked would pass for its continuation.
        """

    @abc.abstractmethod
    def reset(self, settings: Mapping[str, Any]) -> None:
        """Ends the sequence, where there is one, and applies flat settings by name."""

    @abc.abstractmethod
    def leave(self) -> None:
        """Leaves the world; called once, also when the client has vanished."""


class World(abc.ABC):
    """One simulation. Its calls come from any thread."""

    def access(self) -> contextlib.AbstractContextManager[Properties | None]:
        """Gives access to the world's properties, if it has any, while it stands still."""
        return contextlib.nullcontext()

    @abc.abstractmethod
    def join(self, settings: Mapping[str, Any]) -> Agent:
        """Makes a new agent with flat settings by name; RequestError where it cannot."""

    @abc.abstractmethod
    def reset(self, settings: Mapping[str, Any], caller: Agent | None) -> None:
        """Ends the sequence of every agent and applies flat settings by name.

        Returns when every agent but `caller` has been told by a step.

        Args:
          settings: values by name.
          caller: the agent whose connection asks, if it is one of this world's.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Frees what the world holds. It has no agents then."""
