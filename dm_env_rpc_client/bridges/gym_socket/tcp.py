"""TCP streams of gym-socket-api. The only file of this bridge that touches sockets.

Both ends set TCP_NODELAY: packets are small and each is sent after the answer to the one
before, and Nagle's algorithm would delay them.
"""

from __future__ import annotations

import contextlib
import select
import socket
from typing import TypeVar

from dm_env_rpc_client.bridges.gym_socket.fields import Decoder, Steps
from dm_env_rpc_client.errors import ConnectionLostError, DeadlineExceededError
from dm_env_rpc_client.system.deadline import Deadline
from dm_env_rpc_client.transports.addresses import HostPort

__all__ = ["Listener", "TcpStream", "connect"]

T = TypeVar("T")

_BUFFER_BYTES = 1 << 16


class TcpStream:
    """One connection. Only one thread at a time may use it, except for `shutdown`.

    Args:
      connected: the socket.
      peer: the name of the other end in error messages.
      received: bytes that were already read from the socket and come first.

    Attributes:
      socket: the socket.
    """

    def __init__(self, connected: socket.socket, peer: str, received: bytes = b""):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connected
        self.peer = peer
        self._buffer = memoryview(bytearray(max(_BUFFER_BYTES, len(received))))
        self._buffer[: len(received)] = received
        self._start, self._end = 0, len(received)
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)

    def send(self, data: bytes, deadline: Deadline) -> None:
        """Sends all of `data` until `deadline`.

        Raises:
          DeadlineExceededError: the peer did not read it in time.
          ConnectionLostError: the connection ended.
        """
        try:
            self.socket.settimeout(_remaining(deadline))
            self.socket.sendall(data)
        except OSError as error:
            raise self._error(error) from error

    def receive(self, steps: Steps[T], deadline: Deadline) -> T:
        """Reads one message until `deadline`.

        Raises:
          ProtocolError: the peer sent an invalid message.
          DeadlineExceededError: it was not complete in time.
          ConnectionLostError: the connection ended first.
        """
        decoder = Decoder(steps)
        while not decoder.is_done:
            if self._start < self._end:
                self._start += decoder.feed(self._buffer[self._start : self._end])
                continue
            target = decoder.target
            if len(target) >= _BUFFER_BYTES:
                # Directly into the memory of an array.
                decoder.advance(self._receive_into(target, deadline))
            else:
                self._start = 0
                self._end = self._receive_into(self._buffer, deadline)
        return decoder.result

    def has_unread(self) -> bool:
        """Whether unread bytes have arrived, or the end of the connection."""
        return self._start < self._end or bool(self._poll.poll(0))

    def take_received(self) -> bytes:
        """Returns, and removes, the bytes that were read from the socket and not yet used."""
        received = bytes(self._buffer[self._start : self._end])
        self._start = self._end
        return received

    def shutdown(self) -> None:
        """Ends the connection for both sides; any thread may call it. Raises nothing."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Frees the socket and the buffer. Raises nothing."""
        with contextlib.suppress(OSError):
            self.socket.close()
        self.take_received()
        self._buffer = memoryview(b"")

    def _receive_into(self, memory: memoryview, deadline: Deadline) -> int:
        try:
            self.socket.settimeout(_remaining(deadline))
            count = self.socket.recv_into(memory)
        except OSError as error:
            raise self._error(error) from error
        if not count:
            raise ConnectionLostError(f"{self.peer} ended the connection")
        return count

    def _error(self, error: OSError) -> ConnectionLostError | DeadlineExceededError:
        if isinstance(error, TimeoutError):
            return DeadlineExceededError(f"{self.peer} did not answer, or did not read, in time")
        return ConnectionLostError(f"the connection to {self.peer} broke: {error}")


class Listener:
    """Accepts connections.

    Args:
      address: the address to listen at; port 0 selects a free one.

    Attributes:
      address: the address at which it listens.
      is_closed: whether it was closed.

    Raises:
      OSError: it cannot listen at the address.
    """

    def __init__(self, address: HostPort):
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._socket = socket.create_server(tuple(address), family=family)
        self.is_closed = False
        self.address = HostPort(address.host, self._socket.getsockname()[1])

    def accept(self) -> TcpStream:
        """Waits for a connection; OSError once the listener is closed."""
        while True:
            connected, (host, port, *_) = self._socket.accept()
            try:
                return TcpStream(connected, f"the client at {HostPort(host, port)}")
            except OSError:
                connected.close()  # The client has already disconnected.

    def close(self) -> None:
        """Stops listening and wakes the thread that is in `accept`."""
        self.is_closed = True
        with contextlib.suppress(OSError):
            # Closing alone would leave a thread in accept().
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def connect(address: HostPort, timeout: float) -> TcpStream:
    """Connects to a server.

    Raises:
      ConnectionLostError: the connection was refused or failed; the text gives the reason.
      DeadlineExceededError: no connection was established within `timeout` seconds.
    """
    try:
        connected = socket.create_connection(address, timeout)
    except TimeoutError:
        raise DeadlineExceededError(
            f"could not connect to {address} within {timeout:g} s: no response; check that this is "
            "the address of a gym-socket-api server"
        ) from None
    except (OSError, UnicodeError) as error:
        raise ConnectionLostError(
            f"could not connect to {address}: {error}; check that the server is running"
        ) from error
    try:
        return TcpStream(connected, f"the server at {address}")
    except BaseException:
        connected.close()
        raise


def _remaining(deadline: Deadline) -> float | None:
    """The timeout of a socket; TimeoutError instead of 0.0, which means non-blocking."""
    remaining = deadline.remaining
    if remaining == 0.0:
        raise TimeoutError
    return remaining
