"""One session from handshake to end, in a thread or in a process of its own."""

from __future__ import annotations

import logging
import multiprocessing.connection
import os
import threading
import time
from typing import Any

from dm_env_rpc_client.bridges.gym_socket import wire
from dm_env_rpc_client.bridges.gym_socket.session import (
    EnvironmentFactory,
    Options,
    Session,
    make_environment,
)
from dm_env_rpc_client.bridges.gym_socket.stream import Stream
from dm_env_rpc_client.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvRpcClientError,
    ProtocolError,
)

__all__ = ["host", "refuse", "start_process"]

_log = logging.getLogger(__name__)


def host(stream: Stream, factory: EnvironmentFactory | None, options: Options) -> None:
    """Makes the environment, answers the handshake, and then packets until the client goes.

    Args:
      stream: the connection, from which the handshake has been read.
      factory: makes the environment; None for a session without one.
      options: how to serve.

    Raises:
      Exception: the environment failed; the client has been told, or cut off.
    """
    try:
        session = Session(None if factory is None else make_environment(factory), options)
    except Exception as error:
        message = f"the environment could not be made: {type(error).__name__}: {error}"
        refuse(stream, message[:1000])
        raise
    try:
        stream.send(wire.encode_error(""), time.monotonic() + options.idle_timeout)
        while True:
            steps = wire.read_request(options.dialect, options.limits)
            request = stream.receive(steps, time.monotonic() + options.idle_timeout)
            answer = session.answer(request)
            if answer:
                stream.send(answer, time.monotonic() + options.idle_timeout)
    except ConnectionLostError:
        pass  # How clients leave: the protocol has no packet for it.
    except DeadlineExceededError:
        _log.info("ended the session of %s: it was idle for too long", stream.peer)
    except ProtocolError as error:
        _log.warning("ended the session of %s: %s", stream.peer, error)
    finally:
        stream.shutdown()
        session.close()


def refuse(stream: Stream, message: str) -> None:
    """Answers a handshake with an error, as far as the client still listens."""
    try:
        stream.send(wire.encode_error(message), time.monotonic() + 1.0)
    except DmEnvRpcClientError as error:
        _log.info("could not refuse %s: %s", stream.peer, error)


def start_process(
    stream: Stream, factory: EnvironmentFactory, options: Options
) -> multiprocessing.process.BaseProcess:
    """Starts a process that hosts a session; the caller keeps its own end of the socket open.

    Raises:
      Exception: the process could not be started.
    """
    # A forked child would have the locks of this process's other threads.
    context = multiprocessing.get_context("spawn")
    arguments = (stream.socket, stream.peer, stream.take_received(), factory, options)
    process = context.Process(target=_host_here, args=arguments, daemon=True)
    process.start()
    return process


def _host_here(
    connected: Any, peer: str, received: bytes, factory: EnvironmentFactory, options: Options
) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    host(Stream(connected, peer, received), factory, options)


def _end_with_parent() -> None:
    """Leaves no orphan behind when the server's process is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
