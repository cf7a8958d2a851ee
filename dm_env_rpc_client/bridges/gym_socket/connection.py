"""The client's side of a connection: requests and answers, deadlines, failure, and closing.

Packets carry no id. As soon as an answer might belong to a different packet, the connection is
poisoned: every later call fails, with the original error as its cause.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

from google.rpc import code_pb2, status_pb2

from dm_env_rpc_client.bridges.gym_socket import packets, tcp
from dm_env_rpc_client.bridges.gym_socket.packets import Limits, ObservationBounds
from dm_env_rpc_client.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    DmEnvRpcError,
    ProtocolError,
)
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.system.waiting import Deadline
from dm_env_rpc_client.transports.net.addresses import HostPort

CLOSE_SECONDS = 1.0
"""The longest time, in seconds, that `close` waits for another thread's request."""


class PacketConnection:
    """A connection to a server, with at most one packet in flight.

    Args:
      address: the address of the server.
      timeout: time limit for connecting, in seconds; None for no limit.
      request_timeout: time limit for each answer, in seconds; None for no limit.
      dialect: the server's dialect.
      limits: limits for the server's messages.

    Attributes:
      bounds: the known limits for observations.
      poisoned_by: the first error that made the connection unusable; None while it is usable.

    Raises:
      ConnectionLostError, DeadlineExceededError: no connection was established.
    """

    def __init__(
        self,
        address: HostPort,
        timeout: float | None,
        request_timeout: float | None,
        dialect: packets.Dialect,
        limits: Limits,
    ):
        self.bounds = ObservationBounds()
        self.poisoned_by: BaseException | None = None
        self._address = address
        self._request_timeout = request_timeout
        self._dialect = dialect
        self._limits = limits
        self._lock = make_lock()
        self._is_waiting = False
        self._pid = os.getpid()
        self._stream = tcp.connect(address, timeout)
        # Runs when this object is garbage-collected, and at the exit of the interpreter. It
        # refers to the stream alone: the traceback of `poisoned_by` refers to the frames that
        # used this object, so a reference to it would keep this object alive.
        self._finalizer = weakref.finalize(self, self._stream.close)

    def ask(self, request: packets.Request) -> Any:
        """Send a packet and return its answer (see `packets.read_answer`).

        Returns:
          The answer; None for a packet without an answer.

        Raises:
          SpecError: the packet is invalid; nothing was sent.
          ProtocolError: the answer is invalid.
          DeadlineExceededError, ConnectionLostError, ConnectionClosedError: no answer came,
            and none will.
        """
        data = packets.encode_request(request, self._dialect)
        self._check_usable()
        deadline = Deadline.after(self._request_timeout)
        with self._lock:
            if self._is_waiting:
                # An interrupt kept the error handling below from running.
                self.poison(ConnectionLostError("a request was interrupted"))
            self._check_usable()
            self._is_waiting = True
            try:
                self._stream.deadline = deadline
                if self._stream.has_unread():
                    self._stream.read(1)  # Raises if it is the end of the connection.
                    raise ProtocolError(f"{self._stream.peer} sent an unrequested answer")
                self._stream.send(data)
                answer = None
                if packets.has_answer(request, self._dialect):
                    limits, bounds = self._limits, self.bounds
                    answer = packets.read_answer(self._stream, request, limits, bounds)
                self._is_waiting = False
                return answer
            except BaseException as error:
                if isinstance(self.poisoned_by, ConnectionClosedError):
                    self._check_usable()
                self.poison(error)
                raise

    def command(self, request: packets.Request) -> None:
        """Send a packet whose only possible answer is an error string.

        Raises:
          DmEnvRpcError: the server refused.
          DmEnvRpcClientError: otherwise as `ask`.
        """
        message = self.ask(request)
        if message:
            # The protocol has error texts, but no codes.
            raise DmEnvRpcError(status_pb2.Status(code=code_pb2.UNKNOWN, message=message))

    def poison(self, cause: BaseException) -> BaseException:
        """Make the connection unusable, unless it already is, and return `cause`."""
        if self.poisoned_by is None:
            self.poisoned_by = cause
            self._stream.shutdown()
        return cause

    def close(self) -> None:
        """End the connection without raising; repeated calls have no effect."""
        if self._finalizer.detach() is None:
            return
        if self.poisoned_by is None:
            self.poisoned_by = ConnectionClosedError("close() was called")
        if os.getpid() == self._pid:
            # Wakes a thread that waits for an answer. In a forked child this would end the
            # parent's session.
            self._stream.shutdown()
            # Waits until that thread no longer uses the socket: once the socket is closed,
            # another file may get its descriptor.
            if self._lock.acquire(timeout=CLOSE_SECONDS):
                self._lock.release()
        self._stream.close()

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ConnectionLostError(
                f"the session with {self._address} belongs to the process that opened it; open a "
                "new one in the forked child"
            )
        cause = self.poisoned_by
        if isinstance(cause, ConnectionClosedError):
            raise ConnectionClosedError(f"the session with {self._address} was closed") from cause
        if cause is not None:
            reason = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
            raise ConnectionLostError(
                f"the session with {self._address} can no longer match answers to packets because "
                f"of an earlier error ({reason}); open a new session"
            ) from cause
