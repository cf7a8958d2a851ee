"""The episodes of a recording, as TimeSteps and actions."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import dm_env
import numpy as np
from dm_env import specs

from dm_env_rpc_client.errors import DmEnvRpcError, ProtocolError, RecordingError, SpecError
from dm_env_rpc_client.protocol import batches, lifecycle, timesteps
from dm_env_rpc_client.protocol.envelopes import DECODE_ERRORS, EnvironmentRequest, decode_response
from dm_env_rpc_client.protocol.lifecycle import Lifecycle, State
from dm_env_rpc_client.recording.reader import Entry, RecordedConnection, Scan
from dm_env_rpc_client.recording.rows import Rows, RowStep, Specs, copied, size_of_step
from dm_env_rpc_client.tensors import bounded_parsing, nesting
from dm_env_rpc_client.tensors.memory_limits import DEFAULT, Budget, Limits
from dm_env_rpc_client.tensors.packing import unpack_tensor
from dm_env_rpc_client.tensors.spec_manager import SpecManager, dm_env_spec

# Memory per episode, pending request and spec, measured with CPython 3.11.
_EPISODE_BYTES = 2000
_REQUEST_BYTES = 200
_SPEC_BYTES = 3000


@dataclasses.dataclass
class Episode:
    """A sequence of steps by one agent, or in one row of a batched world.

    The length of an episode is the number of its TimeSteps, including the first.

    Attributes:
      connection: the connection of the agent.
      world_name: the name of the world.
      number: the number of the episode in the recording, from 1.
      row: the row of the batched world, from 0; None if the world has no rows.
      end: "terminated", "interrupted" (by the environment, or because the agent reset or left the
        world), or "unfinished" (the recording ends first).
      action_specs: the specs of the actions, by flat name.
      observation_specs: the specs of all observations, including reward and discount, by flat name.
      nanoseconds: the time at which each TimeStep was received, in nanoseconds since the epoch.
      flat_actions: the action before each TimeStep, by flat name; empty for the first. Actions
        omitted from a step are missing.
      flat_timesteps: the TimeSteps, with observations by flat name.
      held_bytes: approximate memory use in bytes, as counted against `Limits.chunk_bytes`.
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
        """The TimeSteps, stacked along a time axis; see `protocol.timesteps.stack`.

        Observations are nested, as in an environment returned by `make`.

        Raises:
          SpecError: the shape of an observation or the set of requested observations changes.
        """
        return timesteps.stack(
            [
                step._replace(observation=nesting.nest(step.observation, nesting.SEPARATOR))
                for step in self.flat_timesteps
            ]
        )

    @property
    def actions(self) -> dict[str, Any]:
        """The nested actions, stacked along a time axis; there is one fewer than TimeSteps.

        Raises:
          SpecError: only some steps have an action, or the length of an action changes.
        """
        taken = self.flat_actions[1:]
        names = list(self.action_specs)
        for index, action in enumerate(taken, 1):
            for name in names:
                if name not in action:
                    raise SpecError(
                        f"step {index} of episode {self.number} has no action {name!r}, so "
                        "the actions cannot be stacked; use flat_actions instead"
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
                    f"and {list(array.shape)}, so it cannot be stacked; use flat_actions instead"
                )
        return np.stack(arrays)

    @property
    def episode_return(self) -> Any:
        """The sum of the rewards, or 0 if there are no rewards or they are not numbers."""
        given = (step.reward for step in self.flat_timesteps if step.reward is not None)
        rewards = [reward for reward in given if np.asarray(reward).dtype.kind in "biuf"]
        total = np.sum(rewards, axis=0) if rewards else np.float64(0)
        return total if np.ndim(total) else total.item()

    @property
    def seconds(self) -> float:
        """The time between the first and the last TimeStep, in seconds."""
        return (self.nanoseconds[-1] - self.nanoseconds[0]) / 1e9

    @property
    def began(self) -> datetime.datetime:
        """The time at which the first TimeStep was received, in UTC."""
        return datetime.datetime.fromtimestamp(self.nanoseconds[0] / 1e9, datetime.timezone.utc)


@dataclasses.dataclass(frozen=True)
class Recording:
    """The contents of a recording.

    Attributes:
      connections: the recorded connections, by number.
      episodes: the episodes, in the order in which they ended.
      is_complete: False if the recorder was killed, or is still recording.
    """

    connections: Mapping[int, RecordedConnection]
    episodes: list[Episode] = dataclasses.field(repr=False)
    is_complete: bool


def read(path: str | os.PathLike[str], limits: Limits = DEFAULT) -> Recording:
    """Read a whole recording into memory, unlike `episodes`, which reads one episode at a time.

    Args:
      path: the file. If its recorder was killed, it is read up to the last complete chunk.
      limits: limits for messages (as for the recorded connections), for chunks, and for all
        TimeSteps together.

    Returns:
      The connections and the episodes.

    Raises:
      RecordingError: the file is not a recording, is damaged or exceeds the limits, or a
        connection breaks the protocol.
    """
    scan = Scan(path, limits)
    found = list(all_episodes(scan))
    return Recording(scan.connections, found, scan.is_complete)


def episodes(
    recording: str | os.PathLike[str] | Scan, limits: Limits = DEFAULT
) -> Iterator[Episode]:
    """Read the episodes of a recording one by one.

    Args:
      recording: the file, or a `Scan` of it. A `Scan` has its own limits, and its `connections` and
        `is_complete` describe the whole file after the last episode.
      limits: as for `read`, applied to the running episodes.

    Yields:
      Each episode as it ends, and finally the unfinished episodes.

    Raises:
      As `read`. After a protocol violation, the rest of its connection is not read, and the error
      is raised after all complete episodes in the file.
    """
    scan = recording if isinstance(recording, Scan) else Scan(recording, limits)
    for episode in all_episodes(scan):
        yield episode
        scan.budget.release(episode.held_bytes)
        del episode


def all_episodes(scan: Scan) -> Iterator[Episode]:
    """Yield what `episodes` yields, but also count ended episodes against the scan's limits."""
    agents: dict[int, _Agent] = {}
    numbers = itertools.count(1)
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
            ended = collections.deque(agent.take(entry))
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
        while ended:
            episode = ended.popleft()
            episode.number = next(numbers)
            yield episode
            del episode
    for agent in agents.values():
        for episode in agent.unfinished:
            episode.number = next(numbers)
            yield episode
    if failure is not None:
        raise failure


class _Begun(NamedTuple):
    """A row's LAST observation, which may also be the first one of the next sequence."""

    observation: Mapping[str, Any]
    nanoseconds: int
    size: int


class _Agent:
    """The agent of a connection, or all agents of a batched world, one for each row.

    Args:
      connection: the connection.
      scan: the reader of the recording.
    """

    def __init__(self, connection: RecordedConnection, scan: Scan):
        self._connection = connection
        self._limits = scan.limits
        self._budget = scan.budget
        self._lifecycle = Lifecycle()
        self._requests: collections.deque[bytes] = collections.deque()
        # Running episodes by row; the row is None for a world without rows.
        self._running: dict[int | None, Episode] = {}
        self._begun: dict[int | None, _Begun] = {}
        self._rows: Rows | None = None
        self._found: Any = None
        self._set_specs(None)

    @property
    def unfinished(self) -> list[Episode]:
        """The episodes that have not ended yet."""
        return list(self._running.values())

    def take(self, entry: Entry) -> Sequence[Episode]:
        """Process a message, and return the episodes that it ends."""
        if entry.is_request:
            self._budget.hold(_REQUEST_BYTES + len(entry.message))
            self._requests.append(entry.message)
            return ()
        if not self._requests:
            raise ProtocolError("an answer has no matching request")
        sent = self._requests.popleft()
        self._budget.release(_REQUEST_BYTES + len(sent))
        request = bounded_parsing.parse(
            EnvironmentRequest, sent, Budget(self._limits), "the request"
        )
        field = request.WhichOneof("payload")
        if field is None:
            return ()  # A property request of version 1.0, or a message unknown to this version.
        try:
            answer = decode_response(entry.message, field, self._limits)
        except DmEnvRpcError:
            return ()  # The protocol guarantees that a failed request has no effect.
        payload = getattr(request, field)
        self._lifecycle.answered(field, payload, answer)
        if field == "step":
            return self._step(payload, answer, entry)
        ended: list[Episode] = []
        if field == "reset" and self._rows is not None:
            mask = payload.settings.get(batches.RESET_MASK)
            ended = self._end(
                self._rows.reset(None if mask is None else unpack_tensor(mask, self._limits))
            )
        elif self._lifecycle.state is not State.RUNNING:
            ended = self._leave()
        if field in ("join_world", "reset") and answer.HasField("specs"):
            return [*ended, *self._set_specs(answer.specs)]
        return ended

    def _leave(self) -> list[Episode]:
        """Mark the world as left or reset, and return the episodes that this ends."""
        if self._rows is not None:
            self._rows.forget()
        self._release(*self._begun)
        return self._end()

    def _set_specs(self, found: Any) -> list[Episode]:
        """Adopt the specs in `found`, or None, and return the episodes that a change ends."""
        if found is not None and found == self._found:
            return []
        ended = self._leave()
        self._found = found
        # Episodes share the specs and keep them in memory.
        actions, observations = ({}, {}) if found is None else (found.actions, found.observations)
        self._budget.hold(_SPEC_BYTES * (len(actions) + len(observations)))
        self._actions = SpecManager(actions, "action", self._limits)
        self._observations = SpecManager(observations, "observation", self._limits)
        self._specs = Specs(dm_env_spec(self._actions), dm_env_spec(self._observations))
        self._rows = Rows.of(self._actions, self._observations, self._budget)
        if self._rows is not None:
            self._budget.hold(_SPEC_BYTES * sum(map(len, self._rows.specs)))
        return ended

    def _step(self, request: Any, answer: Any, entry: Entry) -> list[Episode]:
        """Process a StepRequest and its StepResponse, and return the episodes that they end."""
        state = self._lifecycle.state
        step_type = lifecycle.step_type(self._lifecycle.previous, state)
        is_first = step_type is dm_env.StepType.FIRST
        values = self._observations.unpack(answer.observations)
        action = {} if is_first else self._actions.unpack(request.actions)
        ended: list[Episode] = []
        if self._rows is not None and (
            batches.STEP_TYPE in values if is_first else None not in self._running
        ):
            for step in self._rows.steps(is_first, action, values):
                ended += self._add(step, self._rows.specs, entry.nanoseconds)
        else:
            size = size_of_step(*values.values(), *action.values())
            reward = values.pop(timesteps.REWARD, None)
            discount = values.pop(timesteps.DISCOUNT, None)
            if is_first:
                ended = self._end()
                reward = discount = None
            elif discount is None:
                discount = timesteps.default_discount(step_type, state is State.TERMINATED)
            timestep = dm_env.TimeStep(step_type, reward, discount, values)
            step = RowStep(None, timestep, action, size)
            ended += self._add(step, self._specs, entry.nanoseconds)
        if state is State.TERMINATED:
            ended += self._end([None], "terminated")
        return ended if state is State.RUNNING else [*ended, *self._end()]

    def _add(self, step: RowStep, of: Specs, nanoseconds: int) -> list[Episode]:
        """Add a step to its row's episode, and return the episodes that the step ends."""
        row, timestep = step.row, step.timestep
        ended: list[Episode] = []
        if timestep.first():
            ended = self._end([row])
            self._begin(row, of)
        elif row not in self._running:
            # The sequence began with the LAST step of its predecessor.
            begun = self._begun.get(row)
            if begun is None:
                raise ProtocolError(
                    f"the step of row {row} is {timestep.step_type.name}, but the row's sequence "
                    "never began"
                )
            first = {name: copied(value) for name, value in begun.observation.items()}
            self._begin(row, of)
            restarted = RowStep(row, dm_env.restart(first), {}, begun.size)
            self._append(restarted, begun.nanoseconds)
        self._append(step, nanoseconds)
        if row is not None and timestep.last():
            discount = timestep.discount
            has_terminated = discount is not None and not np.any(discount)
            ended += self._end([row], "terminated" if has_terminated else "interrupted")
            self._budget.hold(step.size)
            self._begun[row] = _Begun(timestep.observation, nanoseconds, step.size)
        return ended

    def _begin(self, row: int | None, of: Specs) -> None:
        self._release(row)
        world_name = self._lifecycle.world_name
        self._running[row] = Episode(self._connection, world_name, 0, *of, row=row)
        self._hold(row, _EPISODE_BYTES)

    def _append(self, step: RowStep, nanoseconds: int) -> None:
        self._hold(step.row, step.size)
        episode = self._running[step.row]
        episode.flat_timesteps.append(step.timestep)
        episode.flat_actions.append(step.action)
        episode.nanoseconds.append(nanoseconds)

    def _hold(self, row: int | None, size: int) -> None:
        self._budget.hold(size)
        self._running[row].held_bytes += size

    def _end(
        self,
        rows: Sequence[int | None] | None = None,
        end: Literal["terminated", "interrupted"] = "interrupted",
    ) -> list[Episode]:
        """End the running episodes of some or all rows, and return the ended episodes."""
        ended = []
        for row in list(self._running) if rows is None else rows:
            episode = self._running.pop(row, None)
            if episode is not None:
                episode.end = end
                ended.append(episode)
        return ended

    def _release(self, *rows: int | None) -> None:
        """Discard the stored LAST observations of rows."""
        for row in rows:
            begun = self._begun.pop(row, None)
            if begun is not None:
                self._budget.release(begun.size)
