"""The adaptor that presents a joined connection as a dm_env.Environment.

The performance-critical path is `step`, which encodes the action; the connection then sends it and
waits for the answer. To step several environments, pools split `step` into parts: first
`_prepare_step` for all environments, then `_start_step` for all, then `_finish_step` for all.
`rollout` and `unroll` keep several steps in flight. Exchanges send all other requests; see
`joined_adaptor.py`.

If an interrupt causes an answer to be lost, the connection becomes unusable, so that no step
can follow a step whose result was never seen.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import dm_env

from dm_env_rpc_client import arguments
from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.client.connection import Connection
from dm_env_rpc_client.environment.base_adaptor import (
    AHEAD,
    UNROLL_AHEAD,
    Environment,
    per_step,
    take,
)
from dm_env_rpc_client.environment.exchanges import drive
from dm_env_rpc_client.environment.gymnasium_names import takes_settings
from dm_env_rpc_client.environment.joined_adaptor import JoinedAdaptor, StartedReset
from dm_env_rpc_client.errors import ConnectionClosedError, DmEnvRpcClientError
from dm_env_rpc_client.protocol import timesteps
from dm_env_rpc_client.protocol.envelopes import EncodedRequest
from dm_env_rpc_client.protocol.pipeline import Pending
from dm_env_rpc_client.protocol.step_layout import UnreadStep

if TYPE_CHECKING:
    from typing_extensions import Self


_log = logging.getLogger(__name__)

Rejoin: TypeAlias = Callable[[], dm_env_rpc_pb2.ActionObservationSpecs]
"""The type of a function that leaves a world, joins it again and returns its specs."""


class DmEnvAdaptor(JoinedAdaptor[Connection, Rejoin], Environment):
    """A `dm_env.Environment` that is backed by a remote environment.

    Adaptors are usually made by `make`, `join_world` or `create_and_join_world`.

    Observations and actions are dictionaries, nested if names contain periods. An action may omit
    names; the environment decides what to do without them. The observations named `reward` and
    `discount` become the reward and the discount of the TimeStep; without them, the reward is 0.0
    and the discount 1.0, or 0.0 if the sequence TERMINATED. A FIRST step has neither a reward nor
    a discount, even if the server sends them.

    Arrays in a TimeStep belong to the caller: they are writable, and later steps do not
    change them.

    Args:
      connection: a connection that is joined to a world.
      specs: the specs in the JoinWorldResponse.
      requested_observations: names, or patterns such as `camera.*`, of the observations to
        request; or an `AutoObservations`. None, the default, requests all regular observations.
      nested_tensors: False for flat dictionaries with the periods left in the names.
      extensions: objects to set as attributes of the adaptor, by name; or a function that makes
        them from the connection.
      rejoin: a function that leaves the world, joins it again and returns the specs, for servers
        that do not implement Reset.
      unwrap_single: whether an action is one array, not a mapping, if it is one array in the
        environment at the server; likewise for observations. A server built with this package
        sends such an array alone, under the name `action` or `observation`.
      arrays: "numpy", "torch" or "jax": the library of the arrays in TimeSteps. On a CPU, torch's
        tensors share the received memory; rewards and discounts that the server does not send are
        floats. Arrays of all these libraries are always accepted as actions.
      device: the device of these arrays, such as "cuda:1"; None for the library's default.

    Raises:
      SpecError: a spec is invalid; a requested observation does not exist; an extension has the
        name of an attribute; `arrays` cannot be imported, or the device does not exist.
    """

    def _prepare(self) -> None:
        self._on_close = contextlib.ExitStack()

    @takes_settings
    def reset(self, settings: Mapping[str, Any] | None = None) -> dm_env.TimeStep:
        """Begin a new sequence.

        If no sequence is running, a reset takes one step. A running sequence is ended with a Reset
        request or, if the server refuses it, by leaving and joining the world again.

        Args:
          settings: agent-specific settings for the next sequence, nested or flat. They
            may change the specs; the environment's specs change with them.

        Returns:
          A FIRST TimeStep.

        Raises:
          As `step`.
        """
        drive(self._resetting(settings))
        return self.step({})

    def _start_reset(self, settings: Mapping[str, Any] | None = None) -> StartedReset:
        """End the running sequence, without waiting for the answer.

        The first half of `reset`, for stepping several environments from one thread:
        `_finish_reset` follows, and then a step without actions.

        Args:
          settings: as for `reset`.

        Returns:
          The argument of `_finish_reset`.

        Raises:
          As `reset`; nothing was sent.
        """
        return drive(self._starting_reset(settings))

    def _finish_reset(self, started: StartedReset) -> None:
        """Wait for the answer to `_start_reset`. The next step begins a sequence.

        Raises:
          As `reset`.
        """
        drive(self._finishing_reset(started))

    def step(self, action: Any) -> dm_env.TimeStep:
        """Take a step, or begin a sequence if none is running.

        Args:
          action: values by name, nested as in `action_spec` or by flat name; any of them
            may be omitted. If a sequence begins, they are checked and then ignored.

        Returns:
          The TimeStep.

        Raises:
          SpecError: an action does not conform to its spec; nothing was sent.
          DmEnvRpcError: the environment refused the step.
          ProtocolError: the server broke the protocol or its own specs.
          DeadlineExceededError, ConnectionLostError, ConnectionClosedError: no answer was
            received, and the connection is unusable. With `make(restart=...)`, the step is LAST
            instead, and the error is raised after the last attempt.
        """
        if self._supervision is not None:
            self._supervision.begin()
        elif type(action) is dict:  # Like `_prepare_step`, sooner.
            return self._take_step(self._codec.encode(action))
        return self._take_step(self._prepare_step(action))

    def _take_step(self, prepared: EncodedRequest) -> dm_env.TimeStep:
        """Send a step and wait for its answer, by calling `_start_step` and `_finish_step`.

        Args:
          prepared: the result of `_prepare_step`.

        Returns:
          The TimeStep. Raises as `step` does.
        """
        # Without the property `connection`: this runs in each step.
        connection = self._connection or self._open_connection()
        pending = Pending(prepared, self._interpret_step, None, self._lifecycle)
        try:
            timestep: dm_env.TimeStep = connection._call(pending)
        except BaseException as error:
            connection.interrupted(error, (pending,))
            return self._instead(error, connection)
        return timestep

    def _instead(self, error: BaseException, connection: Connection) -> dm_env.TimeStep:
        """Return the TimeStep that replaces a lost step, if the environment can be restarted.

        Args:
          error: the reason for the loss; raised if nothing restarts the environment.
          connection: the connection of the step.
        """
        if not isinstance(error, DmEnvRpcClientError):
            if self._supervision is not None:
                self._supervision.undo()
            raise error
        self._lose(error, connection)
        lost = self._lost_step()
        # A lost step that would have begun a sequence begins it on the new server.
        return self.step({}) if lost is None else lost

    def _prepare_step(self, action: Any) -> EncodedRequest:
        """Validate and pack an action without sending it.

        `_prepare_step`, `_start_step` and `_finish_step` together are `step`, for stepping several
        environments from one thread: validate all actions, write to all, then read from all.

        Args:
          action: as for `step`.

        Returns:
          The argument of `_start_step`.

        Raises:
          SpecError: the action does not conform to its spec.
        """
        if self._supervision is not None and self._is_lost:
            self._restart()
        # Testing the type saves 0.5 us, and a call.
        return self._codec.encode(action) if type(action) is dict else self._request(action)

    @property
    def _leaves_unread(self) -> bool:
        """Whether callers may pass `is_for_rows` to `_start_step`.

        The result is False if a subclass overrides steps, rewards or discounts, or if the last
        TimeStep is kept in case the next TimeStep is lost.
        """
        kind = type(self)
        # A subclass that overrides one of these expects complete steps.
        return self._supervision is None and all(
            getattr(kind, name) is getattr(DmEnvAdaptor, name)
            for name in ("_start_step", "_finish_step", "reward", "discount")
        )

    def _start_step(self, prepared: EncodedRequest, is_for_rows: bool = False) -> Pending:
        """Send a step without waiting for its answer.

        Args:
          prepared: the result of `_prepare_step`.
          is_for_rows: whether `_finish_step` may return an `UnreadStep` instead of a MID TimeStep,
            for a caller that reads the steps of many environments together; see `_leaves_unread`.

        Returns:
          The pending step; `connection.poll` tells whether its answer has arrived.

        Raises:
          ConnectionLostError, ConnectionClosedError: the connection is unusable.
        """
        connection = self._connection
        if connection is None or self._supervision is not None:
            connection = self._ready()
        try:
            interpret = self._interpret_mid_step if is_for_rows else self._interpret_step
            return connection.start(prepared, interpret)
        except DmEnvRpcClientError as error:
            if self._supervision is None or connection.is_usable:
                raise
            # The loss is reported where the answer would be, in the order of the steps.
            return Pending.failed(prepared, error)

    def _finish_step(self, pending: Pending) -> Any:
        """Wait for the answer to a step in flight.

        Args:
          pending: the result of `_start_step`.

        Returns:
          The TimeStep, or an `UnreadStep` if `_start_step` allowed it. Raises as `step` does.
        """
        connection = self._connection or self._open_connection()
        try:
            return connection.wait(pending)
        except DmEnvRpcClientError as error:
            return self._instead(error, connection)

    def _interrupted(self, error: BaseException) -> None:
        """Make the connection unusable if a signal handler has interrupted a caller of `step`.

        This method is for adaptors that wrap this adaptor and have lost the TimeStep.

        Args:
          error: the error; an Exception concerns the TimeStep, and reaches the caller.
        """
        # An Exception comes from the user's code between answers; an interrupt may come between an
        # answer and its use.
        if not isinstance(error, Exception) and self._connection is not None:
            self._connection.interrupted(error)
            if self._supervision is not None:
                self._supervision.undo()

    def _interrupted_sending(self, error: BaseException) -> None:
        """Make the connection unusable if a signal handler has interrupted the sending of a step.

        The caller might not have stored the request yet, and then cannot wait for its answer.

        Args:
          error: the error; errors of this package do not count as interrupts.
        """
        # It is unknown whether the request was sent, so no later answer can be matched.
        if not isinstance(error, DmEnvRpcClientError) and self._connection is not None:
            self._connection.interrupted(error)

    def submit_step(self, action: Any) -> concurrent.futures.Future[dm_env.TimeStep]:
        """Send a step, with the same arguments as `step`, without waiting for its answer.

        `step_async` is another name for this method.

        Returns:
          A future of the TimeStep. Steps are taken, and answered, in the order sent.
        """
        try:
            saw = None if self._supervision is None else self._supervision.saw
            return self._ready().submit(self._request(action), self._interpret_ahead(), saw)
        except BaseException as error:
            self._interrupted_sending(error)
            raise

    step_async = submit_step

    def rollout(self, actions: Iterable[Any], ahead: int = AHEAD) -> Iterator[dm_env.TimeStep]:
        """Take one step for each action in `actions`, keeping several steps in flight.

        This method is for open-loop policies, such as random or recorded actions, and runs at
        several times the rate of `step`. Actions are taken from the iterable only when they can be
        sent, so that the iterable can be infinite. Each action is validated before it is sent.
        Sequences end and begin as with `step`: the environment ignores the action of a FIRST step.

        Args:
          actions: an iterable of actions, or one action structure whose leaves have a leading
            time axis [T, ...].
          ahead: the maximum number of pending steps; fewer if their answers would exceed
            `base_adaptor.AHEAD_BYTES`.

        Yields:
          The TimeStep of each action, in order. If the generator is closed early, up to `ahead`
          more steps have been taken whose TimeSteps are not returned.

        Raises:
          SpecError: as `step`; the steps for the actions before the invalid one have been taken.
          Otherwise as `step`.
        """
        connection = self._ready()
        prepared = map(self._prepare_step, per_step(actions))
        return self._steps_ahead(
            connection, prepared, arguments.count("ahead", ahead), self._interpret_ahead()
        )

    def _interpret_ahead(self) -> Callable[[Any], dm_env.TimeStep]:
        """Return the function that interprets the answers to steps sent ahead of their callers.

        Their TimeSteps are recorded when callers get them, since not every caller does.
        """
        if self._supervision is None:
            return self._interpret_step
        return functools.partial(self._supervision.unseen, self._interpret_step)

    def _steps_ahead(
        self,
        connection: Connection,
        prepared: Iterator[EncodedRequest],
        ahead: int,
        interpret: Callable[[Any], Any],
    ) -> Iterator[Any]:
        most = self._most_ahead(ahead)
        in_flight: collections.deque[Pending] = collections.deque()
        requests: collections.deque[EncodedRequest] = collections.deque()
        bad: Exception | None = None
        awaited: Pending | None = None
        is_starting = False
        try:
            while True:
                if self._connection is not connection or self._is_lost:
                    # The steps after a lost one are taken in the next sequence.
                    connection = self._ready()
                    # Read after an interrupt: a send may be incomplete.
                    is_starting = True
                    in_flight = collections.deque(self._start_all(connection, requests, interpret))
                    is_starting = False
                # Refilled at half: several requests together take one system call, here and at the
                # server.
                if bad is None and len(in_flight) <= most // 2:
                    more, bad = take(prepared, most - len(in_flight))
                    is_starting = True
                    in_flight.extend(self._start_all(connection, more, interpret))
                    is_starting = False
                    if self._supervision is not None:
                        requests.extend(more)
                if not in_flight:
                    if bad is not None:
                        raise bad
                    return
                if requests:
                    requests.popleft()
                # Assigned before it is removed: an interrupt in between must not lose it.
                awaited = in_flight[0]
                in_flight.popleft()
                timestep = self._finish_step(awaited)
                if self._supervision is not None and awaited.error is None:
                    self._supervision.saw(timestep)
                awaited = None
                yield timestep
        except GeneratorExit:
            raise  # The caller has closed the generator, and the connection stays usable.
        except BaseException as error:
            if is_starting:
                self._interrupted_sending(error)
            # Interrupted between two steps: the answers in flight are lost with the generator.
            elif awaited is None:
                connection.interrupted(error, in_flight)
            # The step's own error is an answer. Any other error has interrupted the wait for it.
            elif awaited.error is not error:
                connection.interrupted(error, (awaited,))
            raise

    def _start_all(
        self,
        connection: Connection,
        requests: Sequence[EncodedRequest],
        interpret: Callable[[Any], Any],
    ) -> list[Pending]:
        try:
            return connection.start_all(requests, interpret)
        except DmEnvRpcClientError as error:
            if self._supervision is None or connection.is_usable:
                raise
            return [Pending.failed(request, error) for request in requests]

    def unroll(self, actions: Any, ahead: int = UNROLL_AHEAD) -> dm_env.TimeStep:
        """Take many steps, keeping several steps in flight.

        Args:
          actions: an iterable of actions, or one action structure whose leaves have a
            leading time axis [T, ...].
          ahead: as for `rollout`.

        Returns:
          The TimeSteps stacked along time, as by `timesteps.stack`: every field has shape
          [T, ...], and sequence boundaries are included.

        Raises:
          SpecError: as `step`, before anything is sent; or there are no actions.
          Otherwise as `step`; the steps that were sent have been taken.
        """
        ahead = arguments.count("ahead", ahead)
        connection = self._ready()
        # All actions are validated before the first step is sent.
        prepared = [self._prepare_step(action) for action in per_step(actions)]
        stack = timesteps.Stack(len(prepared))

        def interpret(answer: Any) -> dm_env.TimeStep | UnreadStep:
            # The stack copies from the messages; only its first and last steps are built.
            if stack.takes_unread:
                return self._interpret_mid_step(answer)
            return self._interpret_step(answer)

        steps = self._steps_ahead(
            connection,
            iter(prepared),
            ahead,
            interpret if self._leaves_unread else self._interpret_ahead(),
        )
        supervision = self._supervision
        latest = None if supervision is None else supervision.latest
        try:
            plain = steps if self._kind.library == "numpy" else map(self._plain, steps)
            return self._given(stack.filled(plain))
        except BaseException as error:
            self._interrupted(error)
            if supervision is not None:
                supervision.latest = latest  # No caller gets the steps before the error, either.
            raise

    def _restart(self) -> None:
        """Restart the environment if its server or connection is lost.

        `step` and `reset` restart a lost environment automatically.

        Raises:
          SpecError: the environment now has different specs.
          DmEnvRpcClientError: the error of the last attempt, if all attempts failed.
        """
        drive(self._restarting())

    def _ready(self) -> Connection:
        """Return the connection, restarting the environment first if it is lost."""
        if self._supervision is not None and self._is_lost:
            self._restart()
        if self._connection is None:
            raise ConnectionClosedError("the environment is closed")
        return self._connection

    def on_restart(self, callback: Callable[[Self], object]) -> None:
        """Call `callback` after each restart, before the specs are compared.

        Args:
          callback: called with the environment, to repeat requests that set it up. An exception
            makes the attempt fail.
        """
        self._on_restart.append(callback)

    def on_close(self, callback: Callable[[], object]) -> None:
        """Call `callback` at the end of `close`. The callback that was added last is called first.

        When the callback is called, a world that `make` created is destroyed and its connection is
        closed, so that the callback can stop the server.

        Args:
          callback: called without arguments, even if `close` encounters errors.
        """
        self._on_close.callback(callback)

    def close(self) -> None:
        """Leave the world, and destroy it if `make` created it. A second call does nothing.

        The method raises no errors but logs them, so that an error in the body of a `with`
        statement is not replaced. After Ctrl-C, `close` does not wait any longer, and a thread
        destroys the world.
        """
        if self._connection is None:
            return
        try:
            drive(self._closing())
        finally:
            try:
                self._on_close.close()
            except Exception:
                _log.warning("could not clean up after an environment", exc_info=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
