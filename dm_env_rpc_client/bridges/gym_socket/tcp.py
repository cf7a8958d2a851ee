"""TCP streams for gym-socket-api; no other module of this bridge uses sockets.

Both ends set TCP_NODELAY, because Nagle's algorithm would delay consecutive small packets.
"""

from __future__ import annotations

import contextlib
import select
import socket

from dm_env_rpc_client.errors import ConnectionLostError, DeadlineExceededError
from dm_env_rpc_client.system.waiting import Deadline
from dm_env_rpc_client.transports.net.addresses import HostPort
from dm_env_rpc_client.transports.net.listening import cannot_listen

_BUFFER_BYTES = 1 << 16


class TcpStream:
    """A TCP connection; except for `shutdown`, only one thread at a time may use it.

    Args:
      connected: the socket.
      peer: the name of the other end in error messages.
      unread: bytes already received from the socket, to be read first.

    Attributes:
      socket: the socket.
      unread: received bytes that have not been read.
      deadline: the deadline for reading and sending. Both raise DeadlineExceededError after the
        deadline, and ConnectionLostError when the connection ends.
    """

    def __init__(self, connected: socket.socket, peer: str, unread: bytes = b""):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connected
        self.peer = peer
        self.unread = bytearray(unread)
        self.deadline = Deadline.after(None)
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)

    def send(self, data: bytes) -> None:
        """Send all of `data`."""
        try:
            self._set_timeout()
            self.socket.sendall(data)
        except OSError as error:
            raise self._error(error) from error

    def read(self, count: int) -> bytes:
        """Return exactly the next `count` bytes."""
        while len(self.unread) < count:
            # Memory grows only as bytes arrive: a stated length alone must not allocate a
            # megabyte.
            received = bytearray(_BUFFER_BYTES)
            del received[self._receive_into(received) :]
            self.unread += received
        data = bytes(self.unread[:count])
        del self.unread[:count]
        return data

    def read_into(self, memory: memoryview) -> None:
        """Fill `memory` with the next bytes."""
        filled = min(len(memory), len(self.unread))
        memory[:filled] = self.read(filled)
        while filled < len(memory):
            filled += self._receive_into(memory[filled:])

    def has_unread(self) -> bool:
        """Whether unread bytes or the end of the connection have arrived."""
        return bool(self.unread or self._poll.poll(0))

    def shutdown(self) -> None:
        """End the connection for both sides without raising; any thread may call this."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket without raising an exception."""
        with contextlib.suppress(OSError):
            self.socket.close()

    def _receive_into(self, memory: bytearray | memoryview) -> int:
        try:
            self._set_timeout()
            count = self.socket.recv_into(memory)
        except OSError as error:
            raise self._error(error) from error
        if not count:
            raise ConnectionLostError(f"{self.peer} ended the connection")
        return count

    def _set_timeout(self) -> None:
        remaining = self.deadline.remaining
        if remaining == 0.0:
            raise TimeoutError  # A timeout of 0.0 would make the socket non-blocking.
        self.socket.settimeout(remaining)

    def _error(self, error: OSError) -> ConnectionLostError | DeadlineExceededError:
        if isinstance(error, TimeoutError):
            return DeadlineExceededError(f"{self.peer} did not answer, or did not read, in time")
        return ConnectionLostError(f"the connection to {self.peer} broke: {error}")


class Listener:
    """A listener that accepts TCP connections.

    Args:
      address: the address to listen on; port 0 selects a free port.

    Attributes:
      address: the listener's address.
      is_closed: whether the listener was closed.

    Raises:
      OSError: the listener cannot listen on the address.
    """

    def __init__(self, address: HostPort):
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        try:
            self._socket = socket.create_server(tuple(address), family=family)
        except OSError as error:
            raise cannot_listen(str(address), error) from error
        self.is_closed = False
        self.address = HostPort(address.host, self._socket.getsockname()[1])

    def accept(self) -> TcpStream:
        """Wait for a connection, or raise OSError once the listener is closed."""
        while True:
            connected, (host, port, *_) = self._socket.accept()
            try:
                return TcpStream(connected, f"the client at {HostPort(host, port)}")
            except OSError:
                connected.close()  # The client has already disconnected.

    def close(self) -> None:
        """Stop listening and wake the thread that is waiting in `accept`."""
        self.is_closed = True
        with contextlib.suppress(OSError):
            # `close` alone would not wake a thread in accept().
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def connect(address: HostPort, timeout: float | None) -> TcpStream:
    """Connect to a server.

    Raises:
      ConnectionLostError: the connection was refused or failed; the message gives the reason.
      DeadlineExceededError: no connection was established within `timeout` seconds or, without a
        timeout, within the operating system's own time limit.
    """
    try:
        connected = socket.create_connection(address, timeout)
    except TimeoutError:
        within = "" if timeout is None else f" within {timeout:g} s"
        raise DeadlineExceededError(
            f"could not connect to {address}{within}: no response; check that this is the address "
            "of a gym-socket-api server"
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
