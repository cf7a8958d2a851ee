"""A pipeline that holds the pending requests of one stream and matches answers to them.

Answers carry no ID and are matched by order alone: the n-th answer responds to the n-th request
(see "Streaming" in the protocol overview). A pipeline is therefore a single FIFO queue. Once the
order is uncertain, the pipeline is poisoned: all pending and later requests fail, with errors
chained to the first cause. An error Status is an ordinary answer and fails only its own request.

This module performs no I/O and uses no locks. Its callers (`client/connection.py`,
`client/async_pipeline.py`) write requests in the order in which they push them, pass answers to
`Pipeline.answer` in the order in which they read them, and wake waiting threads only after
releasing their own locks.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any

from dm_env_rpc_client.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvRpcClientError,
    DmEnvRpcError,
    LaunchError,
    ProtocolError,
)
from dm_env_rpc_client.protocol import envelopes
from dm_env_rpc_client.protocol.lifecycle import Lifecycle, State
from dm_env_rpc_client.tensors.memory_limits import DEFAULT, Limits

MAX_REQUESTS_IN_FLIGHT = 1024
"""The maximum number of pending requests. Further requests wait, because unread answers could
otherwise fill the buffers until the peer stops reading."""

MAX_BYTES_IN_FLIGHT = 64 << 20
"""The maximum total size of pending requests, in bytes. A larger request is sent only when no
other request is pending."""

KEEPALIVE_SECONDS = 20.0
"""The default keepalive timeout, in seconds, for steps, properties and other extensions."""

LOADING_KEEPALIVE_SECONDS = 300.0
"""The default keepalive timeout, in seconds, for requests that make, reset or close an environment.

Simulators load scenes then, often without releasing the GIL.
"""

_LOADING = frozenset(
    ("create_world", "join_world", "reset", "reset_world", "leave_world", "destroy_world")
)
"""The payload fields of these requests."""


class Pending:
    """A request and, once it has finished, its outcome.

    Args:
      encoded: the request.
      interpret: a function that makes the result from the answer's payload. It is called in the
        order of the answers, before the next answer is processed. An exception raised by it is the
        outcome of this request only and does not affect the stream.
      deadline: the time at which the answer is due, in the shell's clock; None for no limit.
      lifecycle: the `Lifecycle` that receives the answer; None if there is none.
      request: the message, for `lifecycle`; None if the caller has encoded it.

    Attributes:
      is_sent: whether the request may have been written.
      outcome: the result and the error, one of which is None; None while the request is pending.
        The pair is one attribute, so that two threads that finish the request at the same time
        cannot set one half each.
      waiters: functions that are called once, without locks, after the outcome is set.
    """

    __slots__ = ("deadline", "decode", "field", "interpret", "is_sent", "lifecycle", "message",
                 "outcome", "request", "size", "waiters")  # fmt: skip

    def __init__(
        self,
        encoded: envelopes.EncodedRequest,
        interpret: Callable[[Any], Any] | None = None,
        deadline: float | None = None,
        lifecycle: Lifecycle | None = None,
        request: envelopes.Request | None = None,
    ):
        self.field = encoded.field
        self.decode = encoded.decode
        self.message = encoded.message
        self.size = len(encoded.message)
        self.interpret = interpret
        # Not the connection, which a pending request must not keep alive.
        self.lifecycle = lifecycle
        self.request = request
        self.deadline = deadline
        self.is_sent = False
        self.waiters: list[Callable[[], None]] = []
        self.outcome: tuple[Any, BaseException | None] | None = None

    @classmethod
    def of(
        cls,
        request: envelopes.Outgoing,
        interpret: Callable[[Any], Any] | None,
        lifecycle: Lifecycle,
        deadline: float | None = None,
        limits: Limits | None = None,
    ) -> Pending:
        """Create a pending request whose answer updates `lifecycle` and must respect `limits`."""
        if isinstance(request, envelopes.EncodedRequest):
            return cls(request, interpret, deadline, lifecycle)
        encoded = envelopes.encode_request(request, limits or DEFAULT)
        return cls(encoded, interpret, deadline, lifecycle, request)

    @classmethod
    def failed(cls, encoded: envelopes.EncodedRequest, error: BaseException) -> Pending:
        """Create a finished request that failed with `error` before it could be sent."""
        pending = cls(encoded)
        pending.finish(None, error)
        return pending

    def finish(self, result: Any, error: BaseException | None) -> None:
        """Set the outcome of the request. Later calls are ignored."""
        if self.outcome is None:
            self.outcome = (result, error)
            # Dropped: they may refer to the sending adaptor, which may be unused by now.
            self.interpret = self.request = None

    @property
    def error(self) -> BaseException | None:
        """The error if the request has failed, or None if it has succeeded or is pending."""
        return None if self.outcome is None else self.outcome[1]

    def wake(self) -> None:
        """Call each function in `waiters` once, and remove it."""
        while self.waiters:
            try:
                waiter = self.waiters.pop()
            except IndexError:
                return  # Another thread has popped the last waiter meanwhile.
            waiter()

    def result(self) -> Any:
        """Return the result of the request or raise its error."""
        assert self.outcome is not None, "the request is still pending"
        result, error = self.outcome
        if error is not None:
            raise error
        return result


class Pipeline:
    """A FIFO queue of the pending requests of one stream.

    Args:
      address: the name of the server in error messages.

    Attributes:
      keepalive_timeout: the keepalive timeout for all requests, in seconds; None for the defaults.
      poisoned_by: the first error that made the stream unusable; None while it is usable.
      server_end: how the server ended, if the shell knows it.
      fifo: the pending requests, oldest first.
      answered: the request answered last, until the shell has woken its waiters; None otherwise.
    """

    def __init__(self, address: str):
        self.address = address
        self.keepalive_timeout: float | None = None
        self.poisoned_by: BaseException | None = None
        self._answered_wrongly = False
        self.server_end: LaunchError | None = None
        self.fifo: collections.deque[Pending] = collections.deque()
        self.answered: Pending | None = None
        # Two counters, so that each has a single writer: the sending and the reading thread.
        self._bytes_pushed = 0
        self._bytes_retired = 0

    def __len__(self) -> int:
        return len(self.fifo)

    def has_room(self, size: int) -> bool:
        """Whether a request of `size` bytes fits within the limits."""
        if not self.fifo:
            return True
        in_flight = self._bytes_pushed - self._bytes_retired
        return len(self.fifo) < MAX_REQUESTS_IN_FLIGHT and in_flight + size <= MAX_BYTES_IN_FLIGHT

    @property
    def oldest(self) -> Pending | None:
        """The request to be answered next, or None if no request is pending."""
        return self.fifo[0] if self.fifo else None

    def keepalive_seconds(self) -> float:
        """How long, in seconds, the server may show no sign of life while it owes an answer.

        A step that begins a sequence resets the environment, so it counts as a reset. So does each
        step of a batch, in which rows can begin sequences.
        """
        if self.keepalive_timeout is not None:
            return self.keepalive_timeout
        oldest = self.oldest
        if oldest is None:
            return KEEPALIVE_SECONDS
        # The state after the last answer, which is the state before the oldest request.
        before = oldest.lifecycle
        begins = before is not None and (before.is_batch or before.state is not State.RUNNING)
        if oldest.field in _LOADING or (oldest.field == "step" and begins):
            return LOADING_KEEPALIVE_SECONDS
        return KEEPALIVE_SECONDS

    def check_usable(self) -> None:
        """Raise an error chained to the first cause if the pipeline is poisoned."""
        if self.poisoned_by is not None:
            raise self._consequence() from self.poisoned_by

    def push(self, pendings: Iterable[Pending]) -> list[bytes]:
        """Add requests until one does not fit within the limits.

        Returns:
          The messages of the added requests, to be written now.

        Raises:
          ConnectionLostError, ConnectionClosedError: the pipeline is poisoned.
        """
        if self.poisoned_by is not None:
            self.check_usable()
        fifo = self.fifo
        messages = []
        for pending in pendings:
            if fifo and not self.has_room(pending.size):
                break
            pending.is_sent = True
            fifo.append(pending)
            self._bytes_pushed += pending.size
            messages.append(pending.message)
            pending.message = b""
        return messages

    def begin(self, pending: Pending) -> bool:
        """Add a request only if no other is pending, and return whether it was added.

        This needs no lock, because a thread that poisons the pipeline also ends the stream, which
        the thread waiting for the answer notices.
        """
        if self.fifo or self.poisoned_by is not None:
            return False
        pending.is_sent = True
        self.fifo.append(pending)
        self._bytes_pushed += pending.size
        pending.message = b""
        return True

    def answer(self, message: envelopes.Buffer) -> Pending:
        """Match an answer with its request.

        The request leaves the FIFO before its answer is interpreted, because `interpret` can send
        another request and wait for its answer.

        Returns:
          The finished request; the caller wakes its waiters, and sets `answered` to None.

        Raises:
          ProtocolError: no request is pending, or the answer does not match the oldest one. The
            caller then poisons the pipeline; the request, with this error as its own, is among
            those that `poison` returns.
        """
        fifo = self.fifo
        try:
            # Stored before removal, so that its waiters are woken even after an interrupt. No lock:
            # one thread reads, others only add requests, or remove all of them by poisoning.
            pending = self.answered = fifo[0]
            fifo.popleft()
        except IndexError:
            # Not the server's fault if it answers a request that failed with the pipeline.
            self.check_usable()
            self._answered_wrongly = True
            raise ProtocolError(
                f"the server at {self.address} sent an answer of {len(message)} bytes while no "
                "request was pending"
            ) from None
        self._bytes_retired += pending.size
        try:
            payload = pending.decode(message)
        except DmEnvRpcError as error:
            pending.finish(None, error)
        except ProtocolError as error:
            self._answered_wrongly = True
            pending.finish(None, error)
            raise
        else:
            interpret, lifecycle = pending.interpret, pending.lifecycle
            try:
                if lifecycle is not None:
                    lifecycle.answered(pending.field, pending.request, payload)
                result = payload if interpret is None else interpret(payload)
            except Exception as error:
                # The answer is of the right kind, so the order holds; only its content is bad.
                pending.finish(None, error)
            else:
                if pending.outcome is None:  # Like `finish`, without the call.
                    pending.outcome = (result, None)
                    pending.interpret = pending.request = None
        return pending

    def poison(self, cause: BaseException) -> list[Pending]:
        """Make the pipeline permanently unusable, and record the cause if it is the first.

        Returns:
          The requests whose waiters the caller must wake: `answered`, in case an interrupt has
          prevented that, and all pending requests, which have now failed.
        """
        if self.poisoned_by is None:
            self.poisoned_by = cause
        woken = [*self.fifo] if self.answered is None else [self.answered, *self.fifo]
        self.fifo.clear()
        for pending in woken:
            self.fail(pending)
        return woken

    def fail(self, pending: Pending) -> None:
        """Fail a request in a poisoned pipeline unless the request has already finished."""
        if pending.outcome is None:
            error = self._consequence(f"waiting for the answer to a {pending.field} request")
            error.__cause__ = self.poisoned_by
            pending.finish(None, error)

    def is_interrupted(self, error: BaseException, pendings: Iterable[Pending] | None) -> bool:
        """Whether an error interrupted the wait for a sent request but is not its outcome.

        The error was raised by a signal handler, or the coroutine was cancelled. The answer is
        lost even if it has arrived, and the next step would silently skip it. Therefore the caller
        poisons the pipeline unless it is already poisoned.

        Args:
          error: the error that ended or prevented the wait.
          pendings: the requests; None if an answer is known to be lost.
        """
        if self.poisoned_by is not None:
            return False
        return pendings is None or any(
            pending.is_sent
            and pending.error is not error
            and not isinstance(error, DmEnvRpcClientError)
            for pending in pendings
        )

    def late(self, pending: Pending) -> DeadlineExceededError:
        """Return the error for a request whose deadline has passed."""
        return DeadlineExceededError(
            f"the server at {self.address} did not answer a {pending.field} request in time"
        )

    def _consequence(self, during: str = "") -> ConnectionLostError | ConnectionClosedError:
        cause = self.poisoned_by
        where = f"the connection to {self.address}"
        while_waiting = f" while {during}" if during else ""
        if isinstance(cause, ConnectionClosedError):
            return ConnectionClosedError(f"{where} was closed{while_waiting}")
        if isinstance(cause, ConnectionLostError):
            text = f"{where} was lost{while_waiting}: {cause.message}"
            return ConnectionLostError(text, cause.code, self.server_end)
        if isinstance(cause, ProtocolError) and not self._answered_wrongly:
            # The stream has ended or was invalid, and the cause says so itself.
            return ConnectionLostError(str(cause), server_end=self.server_end)
        reason = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
        return ConnectionLostError(
            f"{where} can no longer tell which answer belongs to which request after {reason}; "
            "open a new one"
        )
