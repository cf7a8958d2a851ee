"""The episodes of a recording, as TimeSteps and actions."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import dm_env
import numpy as np
from dm_env import specs

from dm_env_rpc_client.errors import DmEnvRpcError, ProtocolError, RecordingError, SpecError
from dm_env_rpc_client.protocol import lifecycle, timesteps
from dm_env_rpc_client.protocol.envelopes import (
    DECODE_ERRORS,
    EnvironmentRequest,
    decode_response,
)
from dm_env_rpc_client.protocol.lifecycle import Lifecycle, State
from dm_env_rpc_client.recording.reading import Entry, RecordedConnection, Scan
from dm_env_rpc_client.tensors import bounded_parsing, nesting
from dm_env_rpc_client.tensors.limits import DEFAULT, Budget, Limits
from dm_env_rpc_client.tensors.spec_manager import SpecManager, dm_env_spec

# What takes memory beside the bytes of arrays and messages, measured with CPython 3.11.
_REQUEST_BYTES = 200
_EPISODE_BYTES = 2000
TIMESTEP_BYTES = 1000
_VALUE_BYTES = 200
_OBJECT_BYTES = 650
_SPEC_BYTES = 3000


@dataclasses.dataclass
class Episode:
    """A sequence of steps of one agent.

    Its length is the number of its TimeSteps, the first one included.

    Attributes:
      connection: the connection of the agent.
      world_name: the name of the world.
      number: its number in the recording, from 1.
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

    def __len__(self) -> int:
        return len(self.flat_timesteps)

    def __repr__(self) -> str:
        return (
            f"<Episode {self.number} of world {self.world_name!r}: {max(0, len(self) - 1)} steps, "
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
          SpecError: a step left an action out that another one has.
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
        stacked = {
            name: np.stack([np.asarray(action[name]) for action in taken])
            if taken
            else np.empty((0, *self.action_specs[name].shape), self.action_specs[name].dtype)
            for name in names
        }
        return nesting.nest(stacked, nesting.SEPARATOR)

    @property
    def episode_return(self) -> Any:
        """The sum of the rewards; 0 if there are none."""
        rewards = [step.reward for step in self.flat_timesteps if step.reward is not None]
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


@dataclasses.dataclass(frozen=True)
class Recording:
    """What a recording contains.

    Attributes:
      connections: the recorded connections, by number.
      episodes: the episodes, in the order in which they ended.
      is_complete: False if the recorder was killed, or still records.
    """

    connections: Mapping[int, RecordedConnection]
    episodes: list[Episode] = dataclasses.field(repr=False)
    is_complete: bool


def read(path: str | os.PathLike[str], limits: Limits = DEFAULT) -> Recording:
    """Reads a recording into memory; `episodes` reads it piece by piece.

    Args:
      path: the file. If its recorder was killed, it is read up to the last whole chunk.
      limits: what a message may contain, as for the connections that were recorded, and what a
        chunk and all TimeSteps together may take.

    Returns:
      The connections and the episodes.

    Raises:
      RecordingError: the file is not a recording, is damaged, exceeds the limits, or a connection
        breaks the protocol.
    """
    scan = Scan(path, limits)
    found = list(all_episodes(scan))
    return Recording(scan.connections, found, scan.is_complete)


def episodes(
    recording: str | os.PathLike[str] | Scan, limits: Limits = DEFAULT
) -> Iterator[Episode]:
    """Reads the episodes of a recording, one after the other.

    Args:
      recording: the file, or a `Scan` of it, whose `connections` and `is_complete` are those of the
        whole file at the end, and whose limits count.
      limits: as for `read`, for the episodes that have not ended.

    Yields:
      Each episode when it has ended; those that did not, at the end.

    Raises:
      As `read`. If a connection breaks the protocol, that is at the end, after all episodes that
      the file has whole; nothing of that connection is read after the message that breaks it.
    """
    scan = recording if isinstance(recording, Scan) else Scan(recording, limits)
    for episode in all_episodes(scan):
        yield episode
        scan.budget.release(episode.held_bytes)
        del episode


def all_episodes(scan: Scan) -> Iterator[Episode]:
    """Yields as `episodes`, for a reader that keeps the episodes, within the limits of the scan."""
    agents: dict[int, _Agent] = {}
    number = 0
    failed: set[int] = set()
    failure: RecordingError | None = None
    for entry in scan:
        connection = entry.connection
        if connection.number in failed:
            continue
        agent = agents.get(connection.number)
        if agent is None:
            agent = agents[connection.number] = _Agent(connection, scan)
        try:
            episode = agent.take(entry)
        except (*DECODE_ERRORS, ProtocolError, SpecError) as error:
            failed.add(connection.number)
            if failure is None:
                kind = "request" if entry.is_request else "answer"
                failure = RecordingError(
                    f"{scan.path}: {kind} {entry.sequence} of connection {connection.number} "
                    f"breaks the protocol: {error}"
                )
                failure.__cause__ = error
            continue
        if episode is not None:
            number += 1
            episode.number = number
            yield episode
            del episode
    for agent in agents.values():
        if agent.episode is not None:
            number += 1
            agent.episode.number = number
            yield agent.episode
    if failure is not None:
        raise failure


class _Agent:
    """The agent of a connection.

    Attributes:
      episode: the one that runs; None between two.
    """

    def __init__(self, connection: RecordedConnection, scan: Scan):
        self.episode: Episode | None = None
        self._connection = connection
        self._limits = scan.limits
        self._budget = scan.budget
        self._lifecycle = Lifecycle()
        self._requests: collections.deque[bytes] = collections.deque()
        self._set_specs({}, {})

    def take(self, entry: Entry) -> Episode | None:
        """Takes a message; returns the episode that it ends, if any."""
        if entry.is_request:
            self._budget.hold(_REQUEST_BYTES + len(entry.message))
            self._requests.append(entry.message)
            return None
        if not self._requests:
            raise ProtocolError("there is no request that it answers")
        sent = self._requests.popleft()
        self._budget.release(_REQUEST_BYTES + len(sent))
        request = bounded_parsing.parse(
            EnvironmentRequest, sent, Budget(self._limits), "the request"
        )
        field = request.WhichOneof("payload")
        if field is None:
            return None  # A property of the 1.0 line, or what this version does not know.
        try:
            answer = decode_response(entry.message, field, self._limits)
        except DmEnvRpcError:
            return None  # By the protocol the request had no effect.
        payload = getattr(request, field)
        self._lifecycle.answered(field, payload, answer)
        if field == "step":
            return self._step(payload, answer, entry)
        if field in ("join_world", "reset") and answer.HasField("specs"):
            self._set_specs(answer.specs.actions, answer.specs.observations)
        if self.episode is None or self._lifecycle.state is State.RUNNING:
            return None
        return self._end("interrupted")

    def _set_specs(self, actions: Mapping[int, Any], observations: Mapping[int, Any]) -> None:
        # Episodes share them, and keep them.
        self._budget.hold(_SPEC_BYTES * (len(actions) + len(observations)))
        self._actions = SpecManager(actions, "action", self._limits)
        self._observations = SpecManager(observations, "observation", self._limits)
        self._specs = dm_env_spec(self._actions), dm_env_spec(self._observations)

    def _step(self, request: Any, answer: Any, entry: Entry) -> Episode | None:
        """Takes a StepRequest and its StepResponse."""
        state = self._lifecycle.state
        step_type = lifecycle.step_type(self._lifecycle.previous, state)
        values = self._observations.unpack(answer.observations)
        size = TIMESTEP_BYTES + sum(map(size_of, values.values()))
        reward = values.pop(timesteps.REWARD, None)
        discount = values.pop(timesteps.DISCOUNT, None)
        action: dict[str, Any] = {}
        if step_type is dm_env.StepType.FIRST:
            world_name = self._lifecycle.world_name
            self.episode = Episode(self._connection, world_name, 0, *self._specs)
            self._hold(_EPISODE_BYTES)
            reward = discount = None
        else:
            action = self._actions.unpack(request.actions)
            if discount is None:
                discount = timesteps.default_discount(step_type, state is State.TERMINATED)
        assert self.episode is not None, "the lifecycle begins every episode with a FIRST step"
        self._hold(size + sum(map(size_of, action.values())))
        self.episode.flat_timesteps.append(dm_env.TimeStep(step_type, reward, discount, values))
        self.episode.flat_actions.append(action)
        self.episode.nanoseconds.append(entry.nanoseconds)
        if state is State.RUNNING:
            return None
        return self._end("terminated" if state is State.TERMINATED else "interrupted")

    def _end(self, end: Literal["terminated", "interrupted"]) -> Episode:
        episode, self.episode = self.episode, None
        assert episode is not None
        episode.end = end
        return episode

    def _hold(self, size: int) -> None:
        assert self.episode is not None
        self._budget.hold(size)
        self.episode.held_bytes += size


def size_of(value: Any) -> int:
    """Returns what a value takes: that of an array of texts or messages is an upper bound."""
    array = np.asarray(value)
    return (
        _VALUE_BYTES + array.nbytes + (_OBJECT_BYTES * array.size if array.dtype == object else 0)
    )
