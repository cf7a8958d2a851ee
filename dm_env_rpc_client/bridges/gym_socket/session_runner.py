"""Runs one session, from the handshake to its end, in a thread or a separate process."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Callable
from typing import Any, TypeVar

from dm_env_rpc_client.bridges.gym_socket import packets
from dm_env_rpc_client.bridges.gym_socket.hosted_environment import as_hosted
from dm_env_rpc_client.bridges.gym_socket.server_session import (
    EnvironmentFactory,
    Options,
    RefusedPacketError,
    ServerSession,
)
from dm_env_rpc_client.bridges.gym_socket.tcp import TcpStream
from dm_env_rpc_client.errors import ConnectionLostError, DeadlineExceededError, ProtocolError
from dm_env_rpc_client.system import children
from dm_env_rpc_client.system.message_pipe import MessagePipe
from dm_env_rpc_client.system.spawned import SpawnedChild
from dm_env_rpc_client.system.waiting import Deadline

T = TypeVar("T")

_log = logging.getLogger(__name__)

REFUSE_SECONDS = 1.0
"""The time limit, in seconds, for sending a refusal to a client."""


def host(stream: TcpStream, factory: EnvironmentFactory | None, options: Options) -> None:
    """Create the environment, answer the handshake, then answer packets until the client leaves.

    Args:
      stream: the connection, from which the handshake has been read.
      factory: creates the environment; None for a session without one.
      options: the options for serving the environment.

    Raises:
      Exception: the environment failed; the client got an error or was disconnected.
    """
    try:
        session = ServerSession(None if factory is None else as_hosted(factory()), options)
    except Exception as error:
        message = f"could not make the environment: {type(error).__name__}: {error}"
        refuse(stream, message[:1000])
        raise
    try:
        answer = packets.encode_error("")
        while True:
            if not _send(stream, answer, options.idle_timeout):
                break
            request = receive(
                stream,
                lambda: packets.read_request(stream, options.dialect, options.limits),
                options.idle_timeout,
            )
            if request is None:
                break
            answer = session.answer(request)
    except RefusedPacketError as error:
        _log.warning("ended the session of %s: %s", stream.peer, error)
    finally:
        stream.shutdown()
        session.close()


def receive(stream: TcpStream, read: Callable[[], T], timeout: float | None) -> T | None:
    """Read a message, or return None if the client left, timed out or broke the protocol."""
    stream.deadline = Deadline.after(timeout)
    try:
        return read()
    except ConnectionLostError:
        pass  # Clients leave by closing the connection: the protocol has no packet for it.
    except (DeadlineExceededError, ProtocolError) as error:
        _log.warning("ended the session of %s: %s", stream.peer, error)
    return None


def refuse(stream: TcpStream, message: str) -> None:
    """Answer a handshake with an error, if the client is still connected."""
    _send(stream, packets.encode_error(message), REFUSE_SECONDS)


def _send(stream: TcpStream, data: bytes, timeout: float | None) -> bool:
    """Send `data` and return whether the connection is still usable."""
    stream.deadline = Deadline.after(timeout)
    try:
        if data:
            stream.send(data)
    except (ConnectionLostError, DeadlineExceededError) as error:
        _log.info("the session of %s ended: %s", stream.peer, error)
        return False
    return True


class SessionProcess:
    """A process that runs a session; the socket also stays open in the calling process.

    Args:
      stream: the connection, from which the handshake has been read.
      factory: creates the environment.
      options: the options for serving the environment.

    Raises:
      Exception: the process could not be started.
    """

    def __init__(self, stream: TcpStream, factory: EnvironmentFactory, options: Options):
        arguments = stream.socket, stream.peer, bytes(stream.unread), factory, options
        self._child = SpawnedChild(_host_here, *arguments, name="gym-socket session")

    def kill(self) -> None:
        """Kill the process if it is still running."""
        self._child.kill()

    def join(self) -> None:
        """Wait until the process has ended.

        Raises:
          RuntimeError: the process failed, or ended before its environment was closed.
        """
        with contextlib.closing(self._child.pipe):
            code = self._child.wait()
            # A process killed after closing its environment was merely slow to exit.
            if code and not (code == -signal.SIGKILL and self._has_closed()):
                raise RuntimeError(f"a session's process {children.how_it_ended(code)}")

    def _has_closed(self) -> bool:
        try:
            # A process started by the environment may keep the other end open.
            return self._child.pipe.wait(0) and bool(self._child.pipe.receive().message)
        except (EOFError, OSError):
            return False


def _host_here(
    told: MessagePipe,
    connected: Any,
    peer: str,
    unread: bytes,
    factory: EnvironmentFactory,
    options: Options,
) -> None:
    stream = TcpStream(connected, peer, unread)
    # Nothing else would end this process if the server is killed.
    parent = children.Parent.from_multiprocessing()
    children.exit_with(parent, children.GRACE_SECONDS, stream.shutdown)
    host(stream, factory, options)
    with contextlib.suppress(OSError):
        told.send(b"closed")
