"""An episode of a recording, and about how much memory it takes."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Any, Literal

import dm_env
import numpy as np
from dm_env import specs

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol import timesteps
from dm_env_rpc_client.recording.reader import RecordedConnection
from dm_env_rpc_client.tensors import nesting

# What takes memory beside the bytes of arrays and messages, measured with CPython 3.11.
EPISODE_BYTES = 2000
TIMESTEP_BYTES = 1000
_VALUE_BYTES = 200
_OBJECT_BYTES = 650


@dataclasses.dataclass
class Episode:
    """A sequence of steps of one agent, or of one row of a batched world.

    Its length is the number of its TimeSteps, the first one included.

    Attributes:
      connection: the connection of the agent.
      world_name: the name of the world.
      number: its number in the recording, from 1.
      row: the row of a batched world that it is of, from 0; None if the world has no rows.
      end: "terminated", "interrupted" (by the environment, or because the agent reset or left the
        world), or "unfinished" (the recording ends before).
      action_specs: the specs of the actions, by flat name.
      observation_specs: the same of all observations, reward and discount included.
      nanoseconds: when each TimeStep was received, since the epoch.
      flat_actions: for each TimeStep the action that led to it, by flat name; that of the first is
        empty. An action that a step left out is missing.
      flat_timesteps: the TimeSteps, with observations by flat name.
      held_bytes: about how much memory it takes, as counted against `Limits.chunk_bytes`.
    """

    connection: RecordedConnection
    world_name: str
    number: int
    action_specs: Mapping[str, specs.Array]
    observation_specs: Mapping[str, specs.Array]
    end: Literal["terminated", "interrupted", "unfinished"] = "unfinished"
    nanoseconds: list[int] = dataclasses.field(default_factory=list, repr=False)
    flat_actions: list[dict[str, Any]] = dataclasses.field(default_factory=list, repr=False)
    flat_timesteps: list[dm_env.TimeStep] = dataclasses.field(default_factory=list, repr=False)
    held_bytes: int = dataclasses.field(default=0, repr=False)
    row: int | None = None

    def __len__(self) -> int:
        return len(self.flat_timesteps)

    def __repr__(self) -> str:
        row = "" if self.row is None else f"row {self.row} of "
        return (
            f"<Episode {self.number} of {row}world {self.world_name!r}: "
            f"{max(0, len(self) - 1)} steps, "
            f"return {self.episode_return}, {self.end}>"
        )

    @property
    def timesteps(self) -> dm_env.TimeStep:
        """The TimeSteps, stacked along time; see `protocol.timesteps.stack`.

        Observations are nested, as those of an environment that `make` returns.

        Raises:
          SpecError: the shape of an observation, or which were requested, changes.
        """
        return timesteps.stack(
            [
                step._replace(observation=nesting.nest(step.observation, nesting.SEPARATOR))
                for step in self.flat_timesteps
            ]
        )

    @property
    def actions(self) -> dict[str, Any]:
        """The actions, stacked along time and nested: one fewer than TimeSteps.

        Raises:
          SpecError: a step left an action out that another one has, or the length of an action
            changes.
        """
        taken = self.flat_actions[1:]
        names = list(self.action_specs)
        for index, action in enumerate(taken, 1):
            for name in names:
                if name not in action:
                    raise SpecError(
                        f"step {index} of episode {self.number} has no action {name!r}, so that "
                        "the actions cannot be stacked; see flat_actions"
                    )
        stacked = {name: self._stacked(name, [action[name] for action in taken]) for name in names}
        return nesting.nest(stacked, nesting.SEPARATOR)

    def _stacked(self, name: str, values: list[Any]) -> Any:
        spec = self.action_specs[name]
        if not values:
            return np.empty((0, *(max(size, 0) for size in spec.shape)), spec.dtype)
        arrays = [np.asarray(value) for value in values]
        for array in arrays:
            if array.shape != arrays[0].shape:
                raise SpecError(
                    f"action {name!r} of episode {self.number} has shapes {list(arrays[0].shape)} "
                    f"and {list(array.shape)}, so that it cannot be stacked; see flat_actions"
                )
        return np.stack(arrays)

    @property
    def episode_return(self) -> Any:
        """The sum of the rewards; 0 if there are none, or if they are not numbers."""
        given = (step.reward for step in self.flat_timesteps if step.reward is not None)
        rewards = [reward for reward in given if np.asarray(reward).dtype.kind in "biuf"]
        total = np.sum(rewards, axis=0) if rewards else np.float64(0)
        return total if np.ndim(total) else total.item()

    @property
    def seconds(self) -> float:
        """The time between its first and its last TimeStep."""
        return (self.nanoseconds[-1] - self.nanoseconds[0]) / 1e9

    @property
    def began(self) -> datetime.datetime:
        """When its first TimeStep was received, in UTC."""
        return datetime.datetime.fromtimestamp(self.nanoseconds[0] / 1e9, datetime.timezone.utc)


def size_of(value: Any) -> int:
    """Returns what a value takes: that of an array of texts or messages is an upper bound."""
    array = np.asarray(value)
    return (
        _VALUE_BYTES + array.nbytes + (_OBJECT_BYTES * array.size if array.dtype == object else 0)
    )
