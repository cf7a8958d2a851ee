"""A joined connection as a dm_env.Environment."""

from __future__ import annotations

import concurrent.futures
import contextlib
import enum
import fnmatch
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import dm_env
from dm_env import specs as dm_env_specs

from dm_env_rpc_client import lifecycle, nesting, specs, timesteps
from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.connection import Connection
from dm_env_rpc_client.errors import (
    ConnectionClosedError,
    DmEnvRpcClientError,
    DmEnvRpcError,
    ProtocolError,
    SpecError,
)
from dm_env_rpc_client.lifecycle import State
from dm_env_rpc_client.settings import pack_settings
from dm_env_rpc_client.spec_manager import SpecManager
from dm_env_rpc_client.timesteps import DISCOUNT, REWARD

__all__ = ["AutoObservations", "DmEnvAdaptor"]

_log = logging.getLogger(__name__)

UNROLL_WINDOW = 64
"""Steps that `unroll` sends ahead of the answers that it has read."""

LEAVE_SECONDS = 1.0
"""How long the server may take to let an agent leave that closes its environment."""


class AutoObservations(enum.Flag):
    """Which observations to request where they are not listed by name.

    All regular ones are requested always; `reward` and `discount` are requested for the
    TimeStep's own fields, and are observations too only where this says so.
    """

    REQUEST_REGULAR_OBSERVATIONS = 0
    REQUEST_REWARD = 1
    REQUEST_DISCOUNT = 2
    REQUEST_ALL_OBSERVATIONS = REQUEST_REWARD | REQUEST_DISCOUNT


class DmEnvAdaptor(dm_env.Environment):
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
        self._lifecycle = connection.lifecycle
        self._requested = (
            AutoObservations.REQUEST_REGULAR_OBSERVATIONS
            if requested_observations is None
            else requested_observations
        )
        self._nested_tensors = nested_tensors
        self._rejoin = rejoin
        self._on_close = contextlib.ExitStack()
        self._adopt(specs)
        self._extension_names = tuple(extensions or ())
        for name, extension in (extensions or {}).items():
            if hasattr(self, name):
                raise SpecError(f"an extension cannot be named {name!r}: that is an attribute")
            setattr(self, name, extension)

    def __repr__(self) -> str:
        where = "closed" if self._connection is None else self._connection.address
        return (
            f"<{type(self).__name__} at {where}: actions {', '.join(self._actions.names())}; "
            f"observations {', '.join(self._observation_specs)}>"
        )

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
        requests = [self._request(action) for action in _per_step(actions)]
        steps: list[dm_env.TimeStep] = []
        in_flight: list[Any] = []
        for request in requests:
            in_flight.append(connection.start(request, self._interpret_step))
            if len(in_flight) - len(steps) >= UNROLL_WINDOW:
                steps.append(self._timestep(in_flight[len(steps)]))
        steps.extend(self._timestep(pending) for pending in in_flight[len(steps) :])
        return timesteps.stack(steps)

    def reward(
        self, state: int, step_type: dm_env.StepType, observations: Mapping[str, Any]
    ) -> Any:
        """Returns the reward of a step; override it for a reward of your own.

        It may run in another thread, and while later answers wait.

        Args:
          state: the EnvironmentStateType of the step.
          step_type: the type of the step.
          observations: what was observed, by flat name.

        Returns:
          What conforms to `reward_spec`; None for a FIRST step.
        """
        if step_type is dm_env.StepType.FIRST:
            return None
        return observations[REWARD] if self._reward_spec is not None else 0.0

    def discount(
        self, state: int, step_type: dm_env.StepType, observations: Mapping[str, Any]
    ) -> Any:
        """Returns the discount of a step; arguments and use are those of `reward`."""
        if step_type is dm_env.StepType.FIRST:
            return None
        if self._discount_spec is not None:
            return observations[DISCOUNT]
        return timesteps.default_discount(step_type, state == dm_env_rpc_pb2.TERMINATED)

    def observation_spec(self) -> dict[str, Any]:
        """Returns the specs of the observations in a TimeStep, by name, nested as they are."""
        return self._nest(self._observation_specs)

    def action_spec(self) -> dict[str, Any]:
        """Returns the specs of the actions, by name, nested as they are."""
        return self._nest(self._action_specs)

    def reward_spec(self) -> Any:
        """Returns the server's spec of the observation `reward`, or dm_env's default."""
        return super().reward_spec() if self._reward_spec is None else self._reward_spec

    def discount_spec(self) -> Any:
        """Returns the server's spec of the observation `discount`, or dm_env's default."""
        return super().discount_spec() if self._discount_spec is None else self._discount_spec

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
        for name in self._extension_names:
            setattr(self, name, None)
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

    def _adopt(self, new: dm_env_rpc_pb2.ActionObservationSpecs) -> None:
        """Works out all that follows from specs, before any of it takes effect."""
        actions = SpecManager(new.actions, "action")
        observations = SpecManager(new.observations, "observation")
        visible = self._visible_names(observations)
        requested = {*visible, *({REWARD, DISCOUNT} & observations.names())}
        by_name = {
            name: specs.tensor_spec_to_dm_env_spec(observations.name_to_spec(name))
            for name in observations.names()
            if name in requested
        }
        self._actions = actions
        self._observations = observations
        self._requested_uids = sorted(map(observations.name_to_uid, requested))
        self._hidden = requested - set(visible)
        self._reward_spec: dm_env_specs.Array | None = by_name.get(REWARD)
        self._discount_spec: dm_env_specs.Array | None = by_name.get(DISCOUNT)
        self._observation_specs = {
            name: spec for name, spec in by_name.items() if name not in self._hidden
        }
        self._action_specs = {
            name: specs.tensor_spec_to_dm_env_spec(actions.name_to_spec(name))
            for name in actions.names()
        }

    def _visible_names(self, observations: SpecManager) -> set[str]:
        requested = self._requested
        names = observations.names()
        if isinstance(requested, AutoObservations):
            hidden = set()
            if AutoObservations.REQUEST_REWARD not in requested:
                hidden.add(REWARD)
            if AutoObservations.REQUEST_DISCOUNT not in requested:
                hidden.add(DISCOUNT)
            return set(names) - hidden
        if isinstance(requested, str):
            raise SpecError(f"requested_observations is a list of names, got {requested!r}")
        visible: set[str] = set()
        for pattern in requested:
            matches = {pattern} & names or set(fnmatch.filter(names, pattern))
            if not matches:
                observations.field(pattern)  # Raises, and names what there is.
            visible |= matches
        return visible

    def _request(self, action: Any) -> dm_env_rpc_pb2.StepRequest:
        if not isinstance(action, Mapping):
            raise SpecError(
                f"an action is a mapping from names to values, got {type(action).__name__}; "
                f"actions: {', '.join(map(repr, self._actions.names())) or 'none'}"
            )
        if self._nested_tensors:
            action = nesting.flatten_dict(action, nesting.SEPARATOR, strict=False)
        return dm_env_rpc_pb2.StepRequest(
            actions=self._actions.pack(action), requested_observations=self._requested_uids
        )

    def _timestep(self, pending: Any) -> dm_env.TimeStep:
        timestep: dm_env.TimeStep = self._open_connection().wait(pending)
        return timestep

    def _interpret_step(self, response: dm_env_rpc_pb2.StepResponse) -> dm_env.TimeStep:
        """Makes the TimeStep of an answer; runs in the order of the answers."""
        step_type = lifecycle.step_type(self._lifecycle.previous, self._lifecycle.state)
        observations = self._unpack(response)
        reward = self.reward(state=response.state, step_type=step_type, observations=observations)
        discount = self.discount(
            state=response.state, step_type=step_type, observations=observations
        )
        for name in self._hidden:
            del observations[name]
        return dm_env.TimeStep(step_type, reward, discount, self._nest(observations))

    def _unpack(self, response: dm_env_rpc_pb2.StepResponse) -> dict[str, Any]:
        received = response.observations
        requested = {}
        for uid in self._requested_uids:
            if uid not in received:
                name = self._observations.uid_to_name(uid)
                raise ProtocolError(
                    f"the server left out observation {name!r} (uid {uid}), which was requested"
                )
            requested[uid] = received[uid]
        try:
            return self._observations.unpack(requested)
        except SpecError as error:
            raise ProtocolError(f"the server broke its own specs: {error}") from error

    def _interpret_reset(self, response: dm_env_rpc_pb2.ResetResponse) -> None:
        self._adopt(response.specs)

    def _leave_and_rejoin(self, refusal: DmEnvRpcError) -> None:
        assert self._rejoin is not None
        try:
            specs = self._rejoin()
        except DmEnvRpcError as error:
            raise refusal from error
        self._adopt(specs)

    def _nest(self, flat: dict[str, Any]) -> dict[str, Any]:
        return nesting.unflatten_dict(flat, nesting.SEPARATOR) if self._nested_tensors else flat


def _per_step(actions: Any) -> Iterable[Any]:
    """The action of each step, of an iterable or of one structure with a time axis."""
    if not isinstance(actions, Mapping):
        return actions  # type: ignore[no-any-return]
    flat = nesting.flatten_dict(actions, nesting.SEPARATOR, strict=False)
    lengths = {name: len(values) for name, values in flat.items()}
    if len(set(lengths.values())) != 1:
        raise SpecError(
            f"every action of an unroll has the same number of steps, got {lengths or 'no actions'}"
        )
    length = next(iter(lengths.values()))
    return [{name: values[t] for name, values in flat.items()} for t in range(length)]
