"""A joined connection as a dm_env.Environment."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dm_env

from dm_env_rpc_client import timesteps
from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.adaptor import Adaptor, AutoObservations, per_step
from dm_env_rpc_client.connection import Connection
from dm_env_rpc_client.errors import (
    ConnectionClosedError,
    DmEnvRpcClientError,
    DmEnvRpcError,
)
from dm_env_rpc_client.lifecycle import State
from dm_env_rpc_client.settings import pack_settings

__all__ = ["AutoObservations", "DmEnvAdaptor"]

_log = logging.getLogger(__name__)

UNROLL_WINDOW = 64
"""Steps that `unroll` sends ahead of the answers that it has read."""

LEAVE_SECONDS = 1.0
"""How long the server may take to let an agent leave that closes its environment."""


class DmEnvAdaptor(Adaptor, dm_env.Environment):
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

    def __repr__(self) -> str:
        return self._describe(self._where())

    def _repr_html_(self) -> str:
        return self._describe_html(self._where())

    def _where(self) -> str:
        return "closed" if self._connection is None else self._connection.address

    @property
    def connection(self) -> Connection:
        """The connection, for extensions; ConnectionClosedError once the adaptor is closed."""
        return self._open_connection()

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
        connection = self._open_connection()
        packed = pack_settings(settings or {})
        # What steps in flight will lead to is not known; a Reset too many does nothing.
        if packed or connection.in_flight or connection.lifecycle.state is State.RUNNING:
            try:
                connection.wait(
                    connection.start(
                        dm_env_rpc_pb2.ResetRequest(settings=packed), self._interpret_reset
                    )
                )
            except DmEnvRpcError as refusal:
                if packed or self._rejoin is None:
                    raise
                self._leave_and_rejoin(refusal)
        return self.step({})

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
        connection = self._open_connection()
        return self._timestep(connection.start(self._request(action), self._interpret_step))

    def step_async(self, action: Any) -> concurrent.futures.Future[dm_env.TimeStep]:
        """Sends a step without waiting for its answer; otherwise as `step`.

        Returns:
          A future of the TimeStep. Steps are taken, and answered, in the order sent.
        """
        return self._open_connection().submit(self._request(action), self._interpret_step)

    def unroll(self, actions: Any) -> dm_env.TimeStep:
        """Takes many steps, sending them ahead of the answers.

        Args:
          actions: the action of each step, as an iterable; or one action structure whose
            leaves have a leading time axis [T, ...].

        Returns:
          The TimeSteps stacked along time, as `timesteps.stack` does: every field
          [T, ...], sequence boundaries included.

        Raises:
          SpecError: as `step`, before anything is sent; or there are no actions.
          Otherwise as `step`; steps that were sent are taken all the same.
        """
        connection = self._open_connection()
        requests = [self._request(action) for action in per_step(actions)]
        steps: list[dm_env.TimeStep] = []
        in_flight: list[Any] = []
        for request in requests:
            in_flight.append(connection.start(request, self._interpret_step))
            if len(in_flight) - len(steps) >= UNROLL_WINDOW:
                steps.append(self._timestep(in_flight[len(steps)]))
        steps.extend(self._timestep(pending) for pending in in_flight[len(steps) :])
        return timesteps.stack(steps)

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

    def _timestep(self, pending: Any) -> dm_env.TimeStep:
        timestep: dm_env.TimeStep = self._open_connection().wait(pending)
        return timestep

    def _leave_and_rejoin(self, refusal: DmEnvRpcError) -> None:
        assert self._rejoin is not None
        try:
            specs = self._rejoin()
        except DmEnvRpcError as error:
            raise refusal from error
        self._adopt(specs)
