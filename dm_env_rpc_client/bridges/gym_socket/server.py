"""A server of environments for gym-socket-api clients."""

from __future__ import annotations

import collections
import functools
import logging
import multiprocessing.reduction
import multiprocessing.util
import os
import pathlib
import threading
import time
import weakref
from collections.abc import Mapping
from types import TracebackType

from dm_env_rpc_client import arguments
from dm_env_rpc_client.bridges.gym_socket import packets, server_session, session_runner
from dm_env_rpc_client.bridges.gym_socket.packets import Limits
from dm_env_rpc_client.bridges.gym_socket.tcp import Listener, TcpStream
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.system.waiting import Deadline, InterruptibleEvent
from dm_env_rpc_client.transports.net import addresses

_log = logging.getLogger(__name__)

STOP_SECONDS = 5.0
"""The default of `Server.stop(grace=...)`, in seconds."""

REFUSALS = 16
"""The number of excess clients that can receive an error at once; others are only disconnected."""


class Server:
    """A running server, returned by `serve`.

    Attributes:
      address: the server's address, such as "localhost:5001".
      errors: the last 100 exceptions of environments, oldest first; each ended its session.
    """

    def __init__(
        self,
        listener: Listener,
        factories: Mapping[str, server_session.EnvironmentFactory],
        options: server_session.Options,
    ):
        self.address = str(listener.address)
        self.errors: collections.deque[BaseException] = collections.deque(maxlen=100)
        self._listener = listener
        self._factories = factories
        self._options = options
        self._lock = make_lock()
        self._sessions: dict[TcpStream, threading.Thread] = {}
        self._children: set[session_runner.SessionProcess] = set()
        self._stopped = InterruptibleEvent()
        self._failures = 0
        self._is_clean = True
        # The accepting thread has only a weak reference, so that it does not keep the server
        # alive.
        self._finalizer = weakref.finalize(self, listener.close)
        if options.processes:
            # Must run before multiprocessing, at exit, waits for its processes to end by SIGTERM.
            self._finalizer.atexit = False
            multiprocessing.util.Finalize(self, _stop_at_exit, (weakref.ref(self),), exitpriority=0)
        self._accepting = threading.Thread(
            target=_accept,
            args=(listener, weakref.ref(self)),
            name="gym-socket accept",
            daemon=True,
        )
        self._accepting.start()

    @property
    def session_count(self) -> int:
        """The number of connected clients."""
        return len(self._sessions)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the server stops.

        Args:
          timeout: time limit in seconds; 0 to check once, None for no limit.

        Returns:
          Whether it stopped.

        Raises:
          SpecError: the timeout is neither None nor a finite number of at least 0.
        """
        none = arguments.NO_LIMIT
        return self._stopped.wait(arguments.seconds("timeout", timeout, least=0.0, none=none))

    def stop(self, grace: float = STOP_SECONDS) -> bool:
        """Stop serving and end every session; repeated calls have no effect.

        Args:
          grace: time limit, in seconds, for environments to finish their current step and to close.
            Slower processes are killed. Threads cannot be killed; they end with the interpreter.

        Returns:
          Whether all environments were closed in time and without an error.
        """
        grace = arguments.seconds("grace", grace, least=0.0)
        if self._finalizer.detach() is None:
            return self._is_clean
        failures = self._failures
        self._listener.close()
        self._accepting.join(grace)
        with self._lock:
            sessions = dict(self._sessions)
        for stream in sessions:
            stream.shutdown()
        deadline = Deadline.after(grace)
        for thread in sessions.values():
            thread.join(deadline.remaining)
        with self._lock:
            children = set(self._children)
        for child in children:
            child.kill()
        for thread in sessions.values():
            if thread.is_alive():
                thread.join(STOP_SECONDS if children else 0.0)
            if thread.is_alive():
                _log.warning("an environment is still in a step; its thread goes on")
                self._is_clean = False
        self._is_clean = self._is_clean and self._failures == failures
        self._stopped.set()
        return self._is_clean

    def admit(self, stream: TcpStream) -> None:
        """Start a session for a new client, connected through `stream`."""
        with self._lock:
            count = len(self._sessions)
            if count >= self._options.max_connections + REFUSALS or self._finalizer.peek() is None:
                stream.close()
                return
            is_full = count >= self._options.max_connections
            serve_one = functools.partial(self._serve, stream, is_full)
            thread = threading.Thread(target=serve_one, name="gym-socket session", daemon=True)
            self._sessions[stream] = thread
            thread.start()

    def __repr__(self) -> str:
        return f"<Server at {self.address}: {self.session_count} sessions>"

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _serve(self, stream: TcpStream, is_full: bool) -> None:
        try:
            self._serve_session(stream, is_full)
        except Exception as error:
            _log.warning("an environment failed; its session has ended", exc_info=True)
            self.errors.append(error)
            with self._lock:
                self._failures += 1
        finally:
            stream.close()
            with self._lock:
                del self._sessions[stream]

    def _serve_session(self, stream: TcpStream, is_full: bool) -> None:
        options = self._options
        handshake = session_runner.receive(
            stream,
            lambda: packets.read_handshake(stream, options.limits),
            options.handshake_timeout,
        )
        if handshake is None:
            return
        name = handshake.env_name
        if is_full:
            limit = options.max_connections
            session_runner.refuse(
                stream, f"the server has {limit} clients, its limit; try again later"
            )
        elif name and name not in self._factories:
            known = ", ".join(map(repr, self._factories)) or "none"
            session_runner.refuse(stream, f"no environment {name!r}; environments: {known}")
        elif name and options.processes:
            self._host_in_process(stream, self._factories[name])
        else:
            session_runner.host(stream, self._factories[name] if name else None, options)

    def _host_in_process(
        self, stream: TcpStream, factory: server_session.EnvironmentFactory
    ) -> None:
        try:
            child = session_runner.SessionProcess(stream, factory, self._options)
        except Exception as error:
            session_runner.refuse(stream, f"could not start a process: {type(error).__name__}")
            raise
        with self._lock:
            self._children.add(child)
        try:
            if self._finalizer.peek() is None:
                child.kill()  # `stop` may have run before this child was in the set.
            # This end of the socket stays open, so that `stop` can shut it down.
            child.join()
        finally:
            with self._lock:
                self._children.discard(child)


def serve(
    environments: Mapping[str, server_session.EnvironmentFactory],
    address: str = "localhost:5001",
    *,
    dialect: packets.Dialect = "first",
    processes: bool = False,
    insecure: bool = False,
    monitor_directory: str | os.PathLike[str] | None = None,
    configure_universe: server_session.ConfigureHandler | None = None,
    wrap_universe: server_session.WrapHandler | None = None,
    max_connections: int = 64,
    handshake_timeout: float | None = 5.0,
    idle_timeout: float | None = 600.0,
    limits: Limits | None = None,
) -> Server:
    """Serve Gymnasium or dm_env environments to gym-socket-api clients.

    Each connection is a session with its own environment, which is closed when the client
    disconnects. A client can only choose from `environments`. Needs the extra `gymnasium`.

    A session steps a `gymnasium.Env`. A dm_env.Environment is adapted to one, with the spaces of
    its specs, as in `adaptors.gymnasium`; only the last discount of each episode is sent, as a flag
    that tells whether a time limit ended the episode.

    The protocol has fewer spaces than Gymnasium. An integer scalar starting at 0 is sent as
    Discrete, an int8 or bool vector from 0 to 1 as MultiBinary, any other integer vector as
    MultiDiscrete, other arrays as Box, and a Tuple as Tuple. A Dict is sent as the Tuple of its
    values in the order of the Dict or, if it has only one value, as this value. For any other
    space, only the name of its type is sent, and arrays of variable length are refused. An
    observation that is a single uint8 array is sent as a byte list. An Upload is answered with an
    error.

    The protocol has error answers for only a few packets. After any other error (an action that
    does not fit, a Step before Reset, a refused Monitor in the first dialect, an environment that
    raises an exception), the session ends, and the log and `Server.errors` give the reason.

    Args:
      environments: factories of environments, by the name that clients send. Several threads may
        call a factory at once.
      address: `host:port`; port 0 selects a free port.
      dialect: "first", the dialect of the protocol document, or "latest". The protocol does
        not negotiate it, so both ends must be configured alike.
      processes: host each session in a separate process, so that a crashing environment ends only
        its own session. The factories and handlers must be picklable, and environments cannot use
        multiprocessing themselves.
      insecure: allow an address other than loopback; nothing is encrypted and clients are not
        authenticated.
      monitor_directory: the folder below which Monitor may record (see `monitor`); None
        refuses the packet.
      configure_universe: called with the environment and the JSON value of a Universe configure
        packet. The environment is the factory's result if that is a `gymnasium.Env`; otherwise,
        its attribute `environment` is the dm_env.Environment. None refuses the packet.
      wrap_universe: called with the environment, the wrapper's name and its settings; returns
        the wrapped environment, such as a `gymnasium.Wrapper`. None refuses the packet.
      max_connections: the maximum number of clients; further clients are refused.
      handshake_timeout: time limit, in seconds, for a client to name its environment; None for no
        limit.
      idle_timeout: time limit, in seconds, for a client to send its next packet or to read an
        answer; None for no limit.
      limits: limits for a client's messages.

    Returns:
      The running Server.

    Raises:
      SpecError: the address is not loopback and `insecure` is False; a factory or handler
        cannot be pickled for a process; or an argument is invalid.
      OSError: the server cannot listen on the address.
    """
    arguments.flag("insecure", insecure)
    arguments.path("monitor_directory", monitor_directory, none="None to refuse the packet")
    arguments.mapping("environments", environments, expected="a mapping of names to callables")
    host_port = addresses.parse_host_port(address)
    if not (insecure or addresses.is_loopback(address)):
        raise SpecError(
            f"{address} is not a loopback address, and gym-socket-api has neither encryption nor "
            "authentication; pass insecure=True to serve every client that connects"
        )
    limits = packets.check_limits(limits)
    for name in environments:
        if not isinstance(name, str) or not 1 <= len(name.encode()) <= limits.name:
            raise SpecError(
                f"environment name {name!r} is not a string of 1 to {limits.name} bytes"
            )
        arguments.function(f"environment {name!r}", environments[name], expected="a callable")
    options = server_session.Options(
        dialect=dialect,
        processes=processes,
        max_connections=max_connections,
        limits=limits,
        handshake_timeout=handshake_timeout,
        idle_timeout=idle_timeout,
        monitor_directory=None if monitor_directory is None else pathlib.Path(monitor_directory),
        configure_universe=configure_universe,
        wrap_universe=wrap_universe,
    )
    factories = dict(environments)
    if processes:
        _check_picklable((factories, options))
    return Server(Listener(host_port), factories, options)


def _check_picklable(what: object) -> None:
    try:
        multiprocessing.reduction.ForkingPickler.dumps(what)
    except Exception as error:
        raise SpecError(
            "processes=True needs factories and handlers that can be pickled, such as module-level "
            f"functions: {error}"
        ) from error


def _stop_at_exit(server: weakref.ref[Server]) -> None:
    running = server()
    if running is not None:
        running.stop()


def _accept(listener: Listener, server: weakref.ref[Server]) -> None:
    while True:
        try:
            stream = listener.accept()
        except OSError as error:
            if listener.is_closed:
                return
            _log.warning("could not accept a connection: %s", error)
            time.sleep(0.1)
            continue
        running = server()
        if running is None:
            stream.close()
            return
        running.admit(stream)
        del running, stream
