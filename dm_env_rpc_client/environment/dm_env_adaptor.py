"""A joined connection as a dm_env.Environment."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import dm_env

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.client.connection import Connection
from dm_env_rpc_client.environment.base_adaptor import (
    AHEAD,
    AutoObservations,
    BaseAdaptor,
    per_step,
    take,
)
from dm_env_rpc_client.errors import (
    ConnectionClosedError,
    DmEnvRpcClientError,
    DmEnvRpcError,
)
from dm_env_rpc_client.protocol import timesteps
from dm_env_rpc_client.protocol.envelopes import EncodedRequest
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.protocol.pipeline import Pending
from dm_env_rpc_client.tensors.settings import pack_settings

__all__ = ["AutoObservations", "DmEnvAdaptor"]

_log = logging.getLogger(__name__)

LEAVE_SECONDS = 1.0
"""How long the server may take to let an agent leave that closes its environment."""


class StartedReset(NamedTuple):
    """A reset of which the answer is not there yet."""

    pending: Pending | None
    has_settings: bool


class DmEnvAdaptor(BaseAdaptor, dm_env.Environment):
    """Steps a remote environment.

    Usually made by `make`, `join_world` or `create_and_join_world`.

    Observations and actions are dictionaries, nested where names have periods. An action
    may leave names out; what the environment does without them is its own affair. The
    observations named `reward` and `discount` become those of the TimeStep; without
    them the reward is 0.0 and the discount 1.0, or 0.0 where the sequence TERMINATED. A
    FIRST step has neither, whatever the server sends.

    Arrays in a TimeStep belong to the caller: writable, and never touched again.

    Args:
      connection: a connection that is joined to a world.
      specs: the specs in the JoinWorldResponse.
      requested_observations: names, or patterns such as `camera.*`, of the observations
        to get; or an `AutoObservations`. None is the default.
      nested_tensors: False for flat dictionaries with the periods left in the names.
      extensions: objects to put on the adaptor as attributes, by name.
      rejoin: leaves and joins the world again and returns the specs, for servers that do
        not know Reset.

    Raises:
      SpecError: a spec cannot be; an observation that is requested does not exist; an
        extension has the name of an attribute.
    """

    def __init__(
        self,
        connection: Connection,
        specs: dm_env_rpc_pb2.ActionObservationSpecs,
        requested_observations: Sequence[str] | AutoObservations | None = None,
        nested_tensors: bool = True,
        extensions: Mapping[str, Any] | None = None,
        rejoin: Callable[[], dm_env_rpc_pb2.ActionObservationSpecs] | None = None,
    ):
        self._connection: Connection | None = connection
        self._rejoin = rejoin
        self._on_close = contextlib.ExitStack()
        super().__init__(
            connection.lifecycle, specs, requested_observations, nested_tensors, extensions
        )

    @property
    def connection(self) -> Connection:
        """The connection, for extensions and for waiting; ConnectionClosedError once closed."""
        return self._open_connection()

    def __repr__(self) -> str:
        return self._describe(self._where())

    def _repr_html_(self) -> str:
        return self._describe_html(self._where())

    def _where(self) -> str:
        return "closed" if self._connection is None else self._connection.address

    def reset(self, settings: Mapping[str, Any] | None = None) -> dm_env.TimeStep:
        """Begins a new sequence.

        Where none is running, that takes a step only. Where one is, it ends with a
        Reset, or, on a server that refuses Reset, by leaving and joining again.

        Args:
          settings: agent-specific settings for the next sequence, nested or flat. They
            may change the specs, which are adopted.

        Returns:
          A FIRST TimeStep.

        Raises:
          As `step`.
        """
        self.finish_reset(self.start_reset(settings))
        return self.step({})

    def start_reset(self, settings: Mapping[str, Any] | None = None) -> StartedReset:
        """Ends the sequence that is running, without waiting for the answer.

        The first half of `reset`, for driving several environments from one thread: it is
        followed by `finish_reset`, and then by a step with no actions.

        Args:
          settings: as for `reset`.

        Returns:
          What `finish_reset` takes.

        Raises:
          As `reset`; nothing was sent then.
        """
        connection = self._open_connection()
        packed = pack_settings(settings or {})
        # What steps in flight will lead to is not known; a Reset too many does nothing.
        if packed or connection.in_flight or connection.lifecycle.state is State.RUNNING:
            request = dm_env_rpc_pb2.ResetRequest(settings=packed)
            pending = connection.start(request, self._interpret_reset)
            return StartedReset(pending, bool(packed))
        return StartedReset(None, False)

    def finish_reset(self, started: StartedReset) -> None:
        """Waits for what `start_reset` sent; the next step begins a sequence.

        Raises:
          As `reset`.
        """
        if started.pending is None:
            return
        try:
            self._open_connection().wait(started.pending)
        except DmEnvRpcError as refusal:
            if started.has_settings or self._rejoin is None:
                raise
            self._leave_and_rejoin(refusal)

    def step(self, action: Any) -> dm_env.TimeStep:
        """Takes a step, or begins a sequence where none is running.

        Args:
          action: values by name, nested as in `action_spec` or by flat name; any of them
            may be left out. Where a sequence begins they are checked, and ignored.

        Returns:
          The TimeStep.

        Raises:
          SpecError: an action does not conform to its spec; nothing was sent.
          DmEnvRpcError: the environment refused the step.
          ProtocolError: the server broke the protocol or its own specs.
          DeadlineExceededError, ConnectionLostError, ConnectionClosedError: there is no
            answer and will be none.
        """
        return self.finish_step(self.start_step(self.prepare_step(action)))

    def prepare_step(self, action: Any) -> EncodedRequest:
        """Checks and packs an action, and sends nothing.

        With `start_step` and `finish_step` it makes up `step`, for driving several
        environments from one thread: check what all of them get, write to all, then read.

        Args:
          action: as for `step`.

        Returns:
          What `start_step` takes.

        Raises:
          SpecError: the action does not conform to its spec.
        """
        return self._request(action)

    def start_step(self, prepared: EncodedRequest) -> Pending:
        """Sends a step without waiting for its answer.

        Args:
          prepared: what `prepare_step` returned.

        Returns:
          The step in flight: `connection.poll` says whether its answer is there.

        Raises:
          ConnectionLostError, ConnectionClosedError: nothing can be sent any more.
        """
        return self._open_connection().start(prepared, self._interpret_step)

    def finish_step(self, pending: Pending) -> dm_env.TimeStep:
        """Waits for the answer to a step that was sent.

        Args:
          pending: what `start_step` returned.

        Returns:
          The TimeStep. Raises as `step` does.
        """
        timestep: dm_env.TimeStep = self._open_connection().wait(pending)
        return timestep

    def step_async(self, action: Any) -> concurrent.futures.Future[dm_env.TimeStep]:
        """Sends a step without waiting for its answer; otherwise as `step`.

        Returns:
          A future of the TimeStep. Steps are taken, and answered, in the order sent.
        """
        return self._open_connection().submit(self._request(action), self._interpret_step)

    def rollout(self, actions: Iterable[Any], ahead: int = AHEAD) -> Iterator[dm_env.TimeStep]:
        """Takes a step for each of `actions`, which do not depend on what comes of them.

        For data of a random or recorded policy, at several times the rate of `step`. Actions
        are taken from the iterable as there is room for them, so it may be endless, and each
        is checked before it is sent. Sequences end and begin in between as they do with
        `step`: the action of a FIRST step is ignored by the environment.

        Args:
          actions: an iterable of actions, or one action structure whose leaves have a leading
            time axis [T, ...].
          ahead: steps in flight at most; fewer where their answers would take more than
            `adaptor.AHEAD_BYTES`.

        Yields:
          The TimeStep of each action, in order. Who stops early leaves up to `ahead` steps
          taken that nobody has seen.

        Raises:
          SpecError: as `step`; steps for the actions before it have been taken.
          Otherwise as `step`.
        """
        connection = self._open_connection()
        prepared = map(self.prepare_step, per_step(actions))
        return self._steps_ahead(connection, prepared, ahead)

    def _steps_ahead(
        self, connection: Connection, prepared: Iterator[EncodedRequest], ahead: int
    ) -> Iterator[dm_env.TimeStep]:
        most = self._most_ahead(ahead)
        in_flight: collections.deque[Pending] = collections.deque()
        bad: Exception | None = None
        while True:
            # Several at a time share a system call, here and at the server.
            if bad is None and len(in_flight) <= most // 2:
                more, bad = take(prepared, most - len(in_flight))
                in_flight.extend(connection.start_all(more, self._interpret_step))
            if not in_flight:
                if bad is not None:
                    raise bad
                return
            yield self.finish_step(in_flight.popleft())

    def unroll(self, actions: Any, ahead: int = AHEAD) -> dm_env.TimeStep:
        """Takes many steps, sending them ahead of the answers.

        Args:
          actions: the action of each step, as an iterable; or one action structure whose
            leaves have a leading time axis [T, ...].
          ahead: as for `rollout`.

        Returns:
          The TimeSteps stacked along time, as `timesteps.stack` does: every field
          [T, ...], sequence boundaries included.

        Raises:
          SpecError: as `step`, before anything is sent; or there are no actions.
          Otherwise as `step`; steps that were sent are taken all the same.
        """
        connection = self._open_connection()
        prepared = [self.prepare_step(action) for action in per_step(actions)]
        steps = self._steps_ahead(connection, iter(prepared), ahead)
        return timesteps.stack(steps, len(prepared))

    def on_close(self, callback: Callable[[], object]) -> None:
        """Has `callback` called when the adaptor has left its world; the last comes first."""
        self._on_close.callback(callback)

    def close(self) -> None:
        """Leaves the world; what `make` created is destroyed. A second time does nothing.

        Raises nothing, so that an error in the body of a `with` stands; what goes wrong
        is logged.
        """
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._forget_extensions()
        if connection.is_usable:
            try:
                connection.send(dm_env_rpc_pb2.LeaveWorldRequest(), timeout=LEAVE_SECONDS)
            except DmEnvRpcClientError as error:
                _log.warning("did not leave the world properly: %s", error)
        try:
            self._on_close.close()
        except Exception:
            _log.warning("could not clean up after an environment", exc_info=True)

    def _open_connection(self) -> Connection:
        if self._connection is None:
            raise ConnectionClosedError("the environment is closed")
        return self._connection

    def _leave_and_rejoin(self, refusal: DmEnvRpcError) -> None:
        assert self._rejoin is not None
        try:
            specs = self._rejoin()
        except DmEnvRpcError as error:
            raise refusal from error
        self._adopt(specs)
