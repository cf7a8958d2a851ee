"""The agents of a recording: what the messages of a connection say about their sequences."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import dm_env

from dm_env_rpc_client.errors import DmEnvRpcError, ProtocolError
from dm_env_rpc_client.protocol import batches, lifecycle, timesteps
from dm_env_rpc_client.protocol.envelopes import EnvironmentRequest, decode_response
from dm_env_rpc_client.protocol.lifecycle import Lifecycle, State
from dm_env_rpc_client.recording.episode import TIMESTEP_BYTES, Episode, size_of
from dm_env_rpc_client.recording.reader import Entry, RecordedConnection, Scan
from dm_env_rpc_client.recording.sequences import RowSequences, Sequences, Specs
from dm_env_rpc_client.tensors import bounded_parsing
from dm_env_rpc_client.tensors.limits import Budget
from dm_env_rpc_client.tensors.packing import unpack_tensor
from dm_env_rpc_client.tensors.spec_manager import SpecManager, dm_env_spec

_REQUEST_BYTES = 200
_SPEC_BYTES = 3000


class Agent:
    """The agent of a connection, or, of a batched world, the agents of its rows.

    Args:
      connection: the connection.
      scan: what reads the recording.
    """

    def __init__(self, connection: RecordedConnection, scan: Scan):
        self._limits = scan.limits
        self._budget = scan.budget
        self._lifecycle = Lifecycle()
        self._sequences = Sequences(connection, scan.budget)
        self._requests: collections.deque[bytes] = collections.deque()
        self._rows: RowSequences | None = None
        self._found: Any = None
        self._set_specs(None)

    @property
    def unfinished(self) -> list[Episode]:
        """The episodes that have not ended."""
        return self._sequences.unfinished

    def take(self, entry: Entry) -> Sequence[Episode]:
        """Takes a message; returns the episodes that it ends."""
        if entry.is_request:
            self._budget.hold(_REQUEST_BYTES + len(entry.message))
            self._requests.append(entry.message)
            return ()
        if not self._requests:
            raise ProtocolError("there is no request that it answers")
        sent = self._requests.popleft()
        self._budget.release(_REQUEST_BYTES + len(sent))
        request = bounded_parsing.parse(
            EnvironmentRequest, sent, Budget(self._limits), "the request"
        )
        field = request.WhichOneof("payload")
        if field is None:
            return ()  # A property of the 1.0 line, or what this version does not know.
        try:
            answer = decode_response(entry.message, field, self._limits)
        except DmEnvRpcError:
            return ()  # By the protocol the request had no effect.
        payload = getattr(request, field)
        self._lifecycle.answered(field, payload, answer)
        if field == "step":
            return self._step(payload, answer, entry)
        ended: list[Episode] = []
        if field == "reset" and self._rows is not None:
            ended = self._rows.reset(self._mask(payload.settings))
        elif self._lifecycle.state is not State.RUNNING:
            ended = self._sequences.end_all()
            if self._rows is not None:
                self._rows.forget()
        if field in ("join_world", "reset") and answer.HasField("specs"):
            return [*ended, *self._set_specs(answer.specs)]
        return ended

    def _mask(self, settings: Mapping[str, Any]) -> Any:
        """Returns which rows a Reset names; None for all."""
        if batches.RESET_MASK not in settings:
            return None
        return unpack_tensor(settings[batches.RESET_MASK], self._limits)

    def _set_specs(self, found: Any) -> list[Episode]:
        """Adopts an ActionObservationSpecs, or none; returns the episodes that end with others."""
        if found is not None and found == self._found:
            return []
        if self._rows is not None:
            self._rows.forget()
        ended = self._sequences.end_all()
        self._found = found
        # Episodes share them, and keep them.
        actions, observations = ({}, {}) if found is None else (found.actions, found.observations)
        self._budget.hold(_SPEC_BYTES * (len(actions) + len(observations)))
        self._actions = SpecManager(actions, "action", self._limits)
        self._observations = SpecManager(observations, "observation", self._limits)
        self._specs = Specs(dm_env_spec(self._actions), dm_env_spec(self._observations))
        self._rows = RowSequences.of(
            self._sequences, self._actions, self._observations, self._budget
        )
        if self._rows is not None:
            self._budget.hold(_SPEC_BYTES * self._rows.spec_count)
        return ended

    def _step(self, request: Any, answer: Any, entry: Entry) -> Sequence[Episode]:
        """Takes a StepRequest and its StepResponse."""
        state = self._lifecycle.state
        step_type = lifecycle.step_type(self._lifecycle.previous, state)
        is_first = step_type is dm_env.StepType.FIRST
        values = self._observations.unpack(answer.observations)
        action = {} if is_first else self._actions.unpack(request.actions)
        world_name, ended = self._lifecycle.world_name, []
        if self._rows is not None and (
            batches.STEP_TYPE in values if is_first else None not in self._sequences
        ):
            ended = self._rows.step(world_name, is_first, action, values, entry.nanoseconds)
            return ended if state is State.RUNNING else [*ended, *self._sequences.end_all()]
        size = TIMESTEP_BYTES + sum(map(size_of, [*values.values(), *action.values()]))
        reward = values.pop(timesteps.REWARD, None)
        discount = values.pop(timesteps.DISCOUNT, None)
        if is_first:
            ended = self._sequences.end_all()
            self._sequences.begin(None, world_name, self._specs)
            reward = discount = None
        elif discount is None:
            discount = timesteps.default_discount(step_type, state is State.TERMINATED)
        timestep = dm_env.TimeStep(step_type, reward, discount, values)
        self._sequences.add(None, timestep, action, entry.nanoseconds, size)
        if state is State.RUNNING:
            return ended
        has_terminated = state is State.TERMINATED
        end = self._sequences.end(None, "terminated" if has_terminated else "interrupted")
        return [*ended, end]
