"""The connection for threads, any number of which can share its stream.

A connection has no reader thread. One of the waiting threads leads: it reads each answer and
matches it with its request. Once the leading thread has its own answer, it wakes a sleeping
thread, which then leads. If only one thread uses the connection, it reads its own answers, and
nothing is handed over between threads. A thread that calls `result()` on a future takes its turn
at reading like any other waiting thread. For futures that are awaited in any other way, a separate
thread (`futures.py`) reads while no other thread does.

The locks of a connection are plain `threading.Lock`s, used in `with` statements. Unlike a
Condition and everything built on one, a plain lock is never left locked by a KeyboardInterrupt. An
interrupt between writing a request and receiving its outcome poisons the connection.
"""

from __future__ import annotations

import concurrent.futures
import functools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from dm_env_rpc_client import arguments
from dm_env_rpc_client.client import server_ends
from dm_env_rpc_client.client.base_connection import (
    CLOSE_SECONDS,
    BaseConnection,
    Pipelines,
    checked_timeouts,
    keep_alive,
)
from dm_env_rpc_client.client.futures import FuturesThread, RequestFuture
from dm_env_rpc_client.client.unclosed import Remains
from dm_env_rpc_client.client.waiting_threads import Sleepers, waking
from dm_env_rpc_client.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvRpcClientError,
    ProtocolError,
)
from dm_env_rpc_client.protocol import envelopes
from dm_env_rpc_client.protocol.observing import pipeline_to
from dm_env_rpc_client.protocol.pipeline import Pending, Pipeline
from dm_env_rpc_client.system import forking, locks
from dm_env_rpc_client.transports.grpc.stream import GrpcStream
from dm_env_rpc_client.transports.net.metadata import Metadata
from dm_env_rpc_client.transports.streams import SharedSocket, Stream

if TYPE_CHECKING:
    import grpc

    from dm_env_rpc_client.tensors.memory_limits import Limits

_log = logging.getLogger(__name__)

_THREAD_END_SECONDS = 0.5
_LOOK_SECONDS = 1.0
"""The interval, in seconds, at which a sleeping thread checks whether the connection was
poisoned."""

_SEND_SECONDS = 0.02
"""The interval, in seconds, at which a sending thread checks whether the reading thread has
stopped."""

Reopen: TypeAlias = "Callable[[float | None], Connection]"
"""A function that takes a timeout in seconds and opens another connection to the same server."""

EndUnclosed: TypeAlias = "Callable[[Connection | None, Remains, Reopen], None]"
"""A function that ends an unclosed connection.

After the connection has been garbage-collected, the function is called with None, in an arbitrary
thread. At interpreter exit, it is called with the connection. The function must not refer to the
connection.
"""


class Connection(BaseConnection):
    """A stream to a server, on which the client joins at most one world at a time, as one agent.

    Any number of threads may use a connection, with any number of pending requests; every
    answer is matched with its request. Coroutines may await
    `asyncio.wrap_future(connection.submit(request))`, or use `AsyncConnection`.

    If an answer is late, wrong or missing, or a wait is interrupted, the connection becomes
    unusable: all pending and later requests fail with ConnectionLostError, chained to the
    first cause. Garbage collection closes an unclosed connection.

    Args:
      channel: a grpc.Channel to the server, which stays open when the connection is
        closed; or a `Stream` of a transport, which is closed with the connection.
      metadata: pairs of strings (bytes for keys ending in `-bin`) sent with the call.
      request_timeout: time limit for each answer, in seconds; None for no limit.
      keepalive_timeout: as for `connect`. A grpc.Channel has options of its own for this.
      limits: limits for answers; None for the defaults. The channel or stream sets the
        transport's limit for the size of a message.

    Raises:
      SpecError: an argument is of another type or out of range, or the metadata is invalid.
    """

    _pipeline: Pipeline

    def __init__(
        self,
        channel: grpc.Channel | Stream,
        metadata: Metadata | None = None,
        *,
        request_timeout: float | None = None,
        keepalive_timeout: float | None = None,
        limits: Limits | None = None,
    ):
        request_timeout, keepalive_timeout = checked_timeouts(
            channel, request_timeout, keepalive_timeout, limits
        )
        is_grpc = hasattr(channel, "stream_stream")
        stream: Any = GrpcStream(cast("grpc.Channel", channel), metadata) if is_grpc else channel
        super().__init__(pipeline_to(stream.address), request_timeout, limits)
        self._stream: Stream = stream
        self._pipeline.keepalive_timeout = keepalive_timeout
        self._keep_alive_with(Pipelines())
        self._is_closed = False
        self._futures = FuturesThread(
            f"dm_env_rpc futures of {self.address}", weakref.WeakMethod(self._read_in_turn)
        )
        self._make_locks()
        self._remains = Remains(stream, self._futures.wake)
        forking.register(self, Connection._after_fork_in_child)
        self._reopen: Callable[[float | None], Connection] = lambda _: Connection(
            channel,
            metadata,
            request_timeout=request_timeout,
            keepalive_timeout=keepalive_timeout,
            limits=limits,
        )
        # Runs when the connection is garbage collected, and at the exit of the interpreter.
        self._finalizer = weakref.finalize(self, self._remains.abort)

    def _keep_alive_with(self, others: Pipelines) -> None:
        """Use the longest keepalive timeout of `others`, to which this connection is added."""
        others[id(self._pipeline)] = self._pipeline
        keep_alive(self._stream, others)

    def _make_locks(self) -> None:
        self._pid = os.getpid()
        # Held while a request is pushed and written, so that both happen in one order.
        # Futures are completed, and threads woken, after the locks are released: both may call
        # back.
        self._write_lock = locks.make_lock()
        # Held briefly: no request is added to the FIFO while it is poisoned.
        self._mutex = locks.make_lock()
        # Held by the thread that reads.
        self._reading = locks.make_lock()
        self._try_reading = locks.trying(self._reading)
        self._leader: int | None = None
        self._sleepers = Sleepers(self._futures.wake)

    def send(self, request: envelopes.Request, timeout: float | None = None) -> envelopes.Response:
        """Send a request and wait for its answer.

        A program may replace this method on a connection, for example to map errors. The functions
        for properties, and those that create, join, reset and leave worlds, call it with the
        request as its only argument. Steps and resets of environments, and clean-up, bypass it.

        Args:
          request: a request message such as `StepRequest`, or an extension in an `Any`.
          timeout: time limit for the answer, in seconds; None for the connection's
            `request_timeout`.

        Returns:
          The response message of the same name, such as `StepResponse`; an `Any` for an
          `Any`.

        Raises:
          DmEnvRpcError: the server answered with an error; the connection stays usable.
          DeadlineExceededError: no answer arrived in time; the connection becomes unusable.
          ConnectionLostError, ConnectionClosedError: the connection was or became unusable.
          ProtocolError: the answer does not match the request; the connection becomes unusable.
          SpecError: this is not a request message; nothing was sent.
        """
        pending = self._pending(request, None, timeout)
        try:
            return self._call(pending)
        except BaseException as error:
            self.interrupted(error, (pending,))
            raise

    def submit(
        self,
        request: envelopes.Outgoing,
        interpret: Callable[[Any], Any] | None = None,
        deliver: Callable[[Any], Any] | None = None,
    ) -> concurrent.futures.Future[Any]:
        """Send a request without waiting for its answer.

        The call blocks only while the number or the total size of pending requests is at its limit
        (see `protocol.pipeline`).

        Args:
          request: as for `send`, or already encoded.
          interpret: a function that makes the result from the answer, called in the order of the
            answers, before the next answer is processed.
          deliver: a function that is called with the result whenever a caller asks the future for
            it, and returns it.

        Returns:
          A future with the outcome of `send`. It cannot be cancelled.

        Raises:
          ConnectionLostError, ConnectionClosedError: the connection is unusable.
          SpecError: this is not a request message; nothing was sent.
        """
        pending = self._pending(request, interpret)
        try:
            self._send(pending)
            return RequestFuture(pending, self._wait_for_future, self._futures, deliver)
        except BaseException as error:
            self.interrupted(error, (pending,))
            raise

    def start(
        self,
        request: envelopes.Outgoing,
        interpret: Callable[[Any], Any] | None = None,
        timeout: float | None = None,
    ) -> Pending:
        """Send a request; the same thread then calls `wait` to get the answer.

        This is cheaper than `submit`, which creates a future.

        Args:
          request: as for `submit`.
          interpret: as for `submit`.
          timeout: time limit for the answer, in seconds; None for the connection's
            `request_timeout`.

        Returns:
          The pending request, to be passed to `wait`.

        Raises:
          As `submit`.
        """
        pending = self._pending(request, interpret, timeout)
        self._send(pending)
        return pending

    def _has_sent(self, request: envelopes.Request, timeout: float | None = None) -> Pending:
        """Register a request sent when the stream was opened, as if `start` had sent it."""
        pending = self._pending(request, None, timeout)
        self._pipeline.push((pending,))
        return pending

    def start_all(
        self,
        requests: Iterable[envelopes.Outgoing],
        interpret: Callable[[Any], Any] | None = None,
    ) -> list[Pending]:
        """Send many requests in one write, which is cheaper than calling `start` for each.

        Args:
          requests: the requests, as for `start`, in the order in which the server is to process
            them.
          interpret: a function that makes the result from each answer; None to return the answers
            themselves.

        Returns:
          The pending requests, each to be passed to `wait`.
        """
        pendings = [self._pending(request, interpret) for request in requests]
        if pendings:
            try:
                self._send(*pendings)
            except BaseException as error:
                self.interrupted(error, pendings)  # After it has returned.
                raise
        return pendings

    def _finish(self) -> None:
        """Tell the server that no more requests follow. Do not start requests after this call.

        Closing the connection then costs no round trip after the last answer.
        """
        self._check_process()
        self._pipeline.check_usable()
        with self._write_lock:
            self._stream.finish()

    def wait(self, pending: Pending) -> Any:
        """Wait for the answer to a request that `start` has sent.

        Args:
          pending: the result of `start`.

        Returns:
          The answer, or the result of `interpret`. Raises like `send`.
        """
        if os.getpid() != self._pid:
            self._after_fork_in_child()
        try:
            self._await(pending, pending.deadline)
        except BaseException as error:
            self._poison(error)
            raise
        if pending.outcome is None:
            self._fail_late(pending)
        return pending.result()

    def _call(self, pending: Pending) -> Any:
        """Send a step request and wait for its answer, combining `start` and `wait`.

        If nothing else is in flight, the transport sends the request and receives the answer in
        one call. Unusual cases fall back to `start` and `wait` at any point. An error other than
        the outcome makes the connection unusable if the request may have been sent.

        Args:
          pending: the request.

        Returns:
          As `wait`.
        """
        exchange, pipeline, deadline = self._stream.exchange, self._pipeline, pending.deadline
        if deadline is None and self._request_timeout is not None:
            deadline = pending.deadline = time.monotonic() + self._request_timeout
        if (
            exchange is not None
            and not pipeline.fifo
            and (deadline is None or deadline - time.monotonic() > _LOOK_SECONDS)
        ):
            held: list[bool] = []
            try:
                # In a forked child, whose lock is new, `begin` refuses: the pipeline is poisoned.
                held.extend(iter(self._try_reading, False))
                if held:
                    self._leader = threading.get_ident()
                    answer = exchange(
                        pending.message,
                        pipeline.begin,
                        pending,
                        self._write_lock,
                        deadline is not None,
                    )
                    if answer is not None:
                        pipeline.answer(answer)
                        pipeline.answered = None
            except DmEnvRpcClientError as error:
                self._poison(error)
            except BaseException as error:
                if pending.is_sent:
                    self._poison(error)
                raise
            finally:
                if held:
                    self._leader = None
                    self._reading.release()
                    if self._sleepers:
                        self._wake_sleeper()
        if pending.outcome is None:
            if not pending.is_sent:
                self._send(pending)
            return self.wait(pending)
        result, failure = pending.outcome  # `result`, without the call.
        if failure is not None:
            raise failure
        return result

    def poll(self, pending: Pending) -> bool:
        """Read the answers that have arrived, without waiting for more.

        Args:
          pending: the result of `start`.

        Returns:
          Whether `wait` would return or raise at once.
        """
        self._check_process()
        if pending.outcome is None:
            try:
                self._await(pending, 0.0)
            except BaseException as error:
                self._poison(error)
                raise
        return pending.outcome is not None or (
            pending.deadline is not None and time.monotonic() >= pending.deadline
        )

    def has_unread(self) -> bool:
        """Whether an unread answer or the end of the connection has arrived.

        Returns:
          True if reading would return or raise at once.
        """
        self._check_process()
        return self._stream.has_unread()

    def shared_socket(self) -> tuple[SharedSocket, int] | None:
        """Return the socket shared with other connections, and this connection's number on it.

        The socket reports which connections have something to read, so that they need not be
        polled one by one; see `SharedSocket`. The result is None if the connection has its own
        socket.
        """
        self._check_process()
        return self._stream.shared_socket()

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when `has_unread` might have become true.

        It serves to wait for several connections at once, with `selectors`, if `has_unread` is
        false for all of them. The result is -1 if the connection was closed on this side.
        """
        self._check_process()
        return self._stream.fileno()

    def interrupted(self, error: BaseException, pendings: Iterable[Pending] | None = None) -> None:
        self._check_process()
        if self._pipeline.is_interrupted(error, pendings):
            self._poison(error)

    def reopen(self, timeout: float | None = 10.0) -> Connection:
        """Open another connection to the same server in the same way.

        Args:
          timeout: time limit for connecting, in seconds; None for no limit.

        Returns:
          A new Connection, not joined to a world. This one stays unchanged.

        Raises:
          As `connect`.
        """
        return self._reopen(arguments.seconds("timeout", timeout, none=arguments.NO_LIMIT))

    def if_not_closed(self, end: EndUnclosed) -> None:
        """Register a function that ends the connection if nothing has closed it.

        Args:
          end: see `EndUnclosed`.
        """
        self._finalizer.detach()
        run = functools.partial(_end_unclosed, end, weakref.ref(self), self._remains, self._reopen)
        self._finalizer = weakref.finalize(self, run)

    def close(self) -> None:
        """Close the connection. A second call does nothing.

        Pending requests fail with ConnectionClosedError. The server has up to a second to end
        the stream. Never raises.
        """
        self._finalizer.detach()
        self._check_process()
        if not self._is_closed:
            self._close()
        if self._tap is not None:
            self._tap.settle()

    def _close(self) -> None:
        """End the stream, gracefully if no request is pending."""
        closed = ConnectionClosedError(f"the connection to {self.address} was closed")
        was_usable = self.poisoned_by is None
        # A signal handler may close the connection while its thread is about to send.
        is_leading = self._leader == threading.get_ident()
        is_idle = was_usable and not self.in_flight and not is_leading
        try:
            self._fail_pending(closed)
            if was_usable:
                _log.debug("%s", closed)
            if is_idle:
                self._stream.close(CLOSE_SECONDS)
        finally:
            self._poison(closed)
            self._is_closed = True
        self._futures.join(_THREAD_END_SECONDS)

    def _pending(
        self,
        request: envelopes.Outgoing,
        interpret: Callable[[Any], Any] | None,
        timeout: float | None = None,
    ) -> Pending:
        if timeout is None:
            timeout = self._request_timeout
        else:
            timeout = arguments.seconds("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        if isinstance(request, envelopes.EncodedRequest):
            return Pending(request, interpret, deadline, self._lifecycle)
        return Pending.of(request, interpret, self._lifecycle, deadline, self._limits)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # The threads that share the connection.

    def _send(self, *pendings: Pending) -> None:
        """Write requests together, blocking while too many requests are pending.

        Raises:
          ConnectionClosedError, ConnectionLostError: the stream is unusable.
          ProtocolError: the server sent an answer while no request was pending.
          DeadlineExceededError: pending requests stayed at their limit until the deadline of a
            request. That request and later ones were not sent; the connection stays usable.
        """
        if os.getpid() != self._pid:
            self._after_fork_in_child()
        pipeline, stream, unsent = self._pipeline, self._stream, pendings
        oldest = None
        try:
            while True:
                if oldest is not None:
                    self._await(oldest, unsent[0].deadline)
                    if oldest.outcome is None:
                        raise pipeline.late(unsent[0])
                with self._write_lock:
                    if not pipeline.fifo and stream.has_unread():
                        pipeline.check_usable()
                        message = stream.read(0)
                        if message is not None:
                            pipeline.answer(message)  # Raises: no request is pending.
                    with self._mutex:
                        messages = pipeline.push(unsent)
                    has_unsent = bool(messages) and stream.write(*messages)
                unsent = unsent[len(messages) :]
                if not unsent:
                    break
                oldest = pipeline.oldest
            if has_unsent:
                self._send_rest(pendings[-1])
        except DeadlineExceededError:
            raise
        except (ProtocolError, ConnectionLostError, ConnectionClosedError) as error:
            # Outside the write lock, because the threads that it wakes may send.
            if self.poisoned_by is not None:
                # If another thread closed it meanwhile, that is the cause, not the failed read.
                pipeline.check_usable()
            self._poison(error)
            if isinstance(error, ConnectionLostError):
                error.server_end = pipeline.server_end
            raise
        except BaseException as error:
            if pendings[0].is_sent:
                self._poison(error)
            raise

    def _send_rest(self, pending: Pending) -> None:
        """Read until the server has received all of a request, to prevent a deadlock."""
        while self._stream.has_unsent() and pending.outcome is None:
            if self._lead(pending, pending.deadline, until_sent=True):
                self._wake_sleeper()
                if pending.deadline is not None and time.monotonic() >= pending.deadline:
                    return  # `wait` raises the error.
            else:
                self._stream.send_rest(_SEND_SECONDS)

    def _wait_for_future(self, pending: Pending, timeout: float | None) -> None:
        """Wait until the outcome is known, for at most `timeout` seconds.

        A missed deadline poisons the connection, as in `wait`; an interrupted wait does so only
        if this thread was reading.
        """
        self._check_process()
        deadline = pending.deadline
        if timeout is not None:
            end = time.monotonic() + timeout
            deadline = end if deadline is None else min(end, deadline)
        self._await(pending, deadline)
        is_late = pending.deadline is not None and time.monotonic() >= pending.deadline
        if is_late and pending.outcome is None:
            self._fail_late(pending)

    def _await(self, pending: Pending, deadline: float | None) -> None:
        """Wait until `pending` is done or the deadline has passed."""
        if pending.outcome is not None or self._lead(pending, deadline):
            if self._sleepers:
                self._wake_sleeper()
            return
        asleep = locks.make_lock()
        asleep.acquire()
        wake = waking(asleep)
        pending.waiters.append(wake)
        self._sleepers.add(wake)
        try:
            # The leader may have finished before it could see this sleeper: try once more.
            while True:
                if pending.outcome is not None or self._lead(pending, deadline):
                    break
                remaining = _LOOK_SECONDS if deadline is None else _remaining(deadline)
                if not asleep.acquire(timeout=remaining) and remaining < _LOOK_SECONDS:
                    break
                # An interrupt may have stopped a thread between poisoning and waking.
                if self.poisoned_by is not None:
                    self._pipeline.fail(pending)
        finally:
            self._sleepers.pop(wake, None)
            try:
                # A thread that polls waits for the same request many times.
                pending.waiters.remove(wake)
            except ValueError:
                pass  # `wake` was called, which removed it.
            # This thread may have been chosen to lead just as it stopped waiting.
            self._wake_sleeper()

    def _read_in_turn(self, until: float) -> bool:
        """Read an answer if no other thread is reading or waiting; see `FuturesThread`."""
        wake = self._futures.wake
        is_turn = self._sleepers.add(wake)
        oldest = self._pipeline.oldest
        if not is_turn or oldest is None or not self._lead(oldest, until):
            return False
        self._sleepers.pop(wake, None)
        self._wake_sleeper()
        return True

    def _lead(self, pending: Pending, deadline: float | None, until_sent: bool = False) -> bool:
        """Read until `pending` is done, sent or late; return False if another thread reads."""
        me = threading.get_ident()
        # `interpret` runs in the reading thread and may itself wait: a reward computed by an
        # adaptor may read a property.
        is_nested = self._leader == me
        held: list[bool] = []
        pipeline = self._pipeline
        try:
            if not is_nested:
                locks.take(self._reading, held)
                if not held:
                    return False
                self._leader = me
            is_over = False
            while True:
                if is_over or pending.outcome is not None:
                    break
                if pipeline.poisoned_by is not None:
                    pipeline.fail(pending)
                    break
                # In turns, to check `poisoned_by`: an interrupted thread may have set it without
                # aborting the stream.
                remaining = _LOOK_SECONDS if deadline is None else _remaining(deadline)
                message = self._stream.read(remaining, until_sent)
                if message is None:
                    is_over = remaining < _LOOK_SECONDS or (
                        until_sent and not self._stream.has_unsent()
                    )
                else:
                    answered = pipeline.answer(message)
                    if answered.waiters:
                        answered.wake()
                    pipeline.answered = None
                    message = None  # Freed now: it may be large, and the next one far off.
        except DmEnvRpcClientError as error:
            self._poison(error)
        except BaseException as error:
            # An answer may have been read and dropped, whichever request it was for.
            self._poison(error)
            raise
        finally:
            if held:
                self._leader = None
                self._reading.release()
        return True

    def _wake_sleeper(self) -> None:
        if self._sleepers and self._leader is None:
            self._sleepers.wake_one()

    def _poison(self, cause: BaseException) -> None:
        """Make the connection unusable, fail pending requests and end the stream."""
        try:
            if self.poisoned_by is None:
                self._pipeline.server_end = server_ends.end_of(self.address, cause)
            self._end(cause)
        except BaseException:
            self._end(cause)  # An interrupt must not leave other threads waiting.
            raise

    def _end(self, cause: BaseException) -> None:
        is_first = self._remains.cause is None
        self._fail_pending(cause)
        self._stream.abort()
        self._futures.end()
        if is_first:
            name = type(cause).__name__
            _log.info("the connection to %s is unusable: %s: %s", self.address, name, cause)

    def _fail_pending(self, cause: BaseException) -> None:
        with self._mutex:
            woken = self._pipeline.poison(cause)
        self._remains.cause = self._remains.cause or type(cause)
        for pending in woken:
            pending.wake()

    def _fail_late(self, pending: Pending) -> None:
        late = self._pipeline.late(pending)
        pending.finish(None, late)
        self._poison(late)
        pending.wake()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            self._after_fork_in_child()

    def _after_fork_in_child(self) -> None:
        """Fail all requests in a forked child without affecting the parent's stream."""
        parent = self._pid
        self._make_locks()
        self._is_closed = True
        self._stream.abandon()
        lost = ConnectionLostError(
            f"it belongs to process {parent}, which forked this one; open a connection of its own "
            "in each process"
        )
        for pending in self._pipeline.poison(lost):
            pending.wake()
        self._futures.after_fork_in_child(self._pipeline.fail)


def _remaining(deadline: float) -> float:
    return min(_LOOK_SECONDS, max(0.0, deadline - time.monotonic()))


def _end_unclosed(
    end: EndUnclosed, connection: weakref.ref[Connection], remains: Remains, reopen: Reopen
) -> None:
    if remains.is_own:
        end(connection(), remains, reopen)
