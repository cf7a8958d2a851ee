"""Functions that leave and destroy worlds, whether or not `close` is called.

Python can free an environment in any thread, in the middle of any code, even while a lock is held.
For this reason, a separate thread communicates with the server, and the interpreter waits for this
thread at exit. Environments that still exist at exit are closed one after the other.

After an interrupt, a thread destroys the world over a separate connection; see `exchanges.py`.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from google.rpc import code_pb2

from dm_env_rpc_client import arguments
from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.client.base_connection import BaseConnection
from dm_env_rpc_client.client.connection import Connection, Reopen
from dm_env_rpc_client.client.unclosed import Remains
from dm_env_rpc_client.environment.exchanges import (
    AnyConnection,
    Call,
    Exchange,
    Sleep,
    adrive,
    answer,
    closing,
    drive,
    request,
)
from dm_env_rpc_client.environment.server_location import Site
from dm_env_rpc_client.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvRpcClientError,
    DmEnvRpcError,
    ProtocolError,
    SpecError,
)
from dm_env_rpc_client.protocol.envelopes import encode_request
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.system.waiting import start_daemon
from dm_env_rpc_client.tensors.memory_limits import DEFAULT

_log = logging.getLogger(__name__)

EXIT_SECONDS = 1.0
"""The maximum time, in seconds, that the interpreter spends on ending environments at exit."""


class _Exit:
    """The time limit at interpreter exit, which all environments share."""

    deadline: float | None = None

    @classmethod
    def remaining(cls) -> float:
        if cls.deadline is None:
            cls.deadline = time.monotonic() + EXIT_SECONDS
        return max(0.0, cls.deadline - time.monotonic())


_is_first_at_exit = False

# A lock for each background thread, held until the thread is done, with its process: a forked
# child has none of the threads.
_running: dict[threading.Lock, int] = {}


def in_background(action: Callable[[], None]) -> None:
    """Call a function in a separate thread, without raising errors.

    Args:
      action: a function without arguments that returns within a limited time.
    """
    global _is_first_at_exit
    if not _is_first_at_exit:
        # Called before everything registered earlier, so before the finalizers of `weakref`, which
        # end the connections that these threads use.
        _is_first_at_exit = True
        atexit.register(_wait_for_background)
    done = make_lock()
    done.acquire()
    _running[done] = os.getpid()

    def run() -> None:
        try:
            _guarded(action)
        finally:
            _running.pop(done, None)
            done.release()

    start_daemon(run)


def at_exit(action: Callable[[], None]) -> None:
    """Call a function without raising its errors, unless the time limit at exit has passed.

    Args:
      action: a function without arguments that returns within a limited time.
    """
    if _Exit.remaining() > 0:
        try:
            _guarded(action)
        except BaseException:
            _Exit.deadline = 0.0  # Ctrl-C: the user does not want to wait.


def _guarded(action: Callable[[], None]) -> None:
    try:
        action()
    except Exception:
        _log.warning("could not end an environment that was not closed", exc_info=True)


def _wait_for_background() -> None:
    try:
        for done in (done for done, pid in list(_running.items()) if pid == os.getpid()):
            done.acquire(timeout=_Exit.remaining())
    except KeyboardInterrupt:
        _Exit.deadline = 0.0


# Called after the finalizers, some of which call `in_background`.
atexit.register(_wait_for_background)


Result = TypeVar("Result")

CLEAN_UP_SECONDS = 1.0
"""The time limit, in seconds, for each request that leaves or destroys a world."""

DESTROY_AGAIN_SECONDS = 0.02
"""The pause, in seconds, between attempts to destroy a world while its agent is still leaving."""


def checked_name(world_name: str) -> str:
    """Return the name of a world, which may be empty, or raise SpecError if it is not a string."""
    return arguments.instance("world_name", world_name, str, "the name of a world")


def received_name(connection: BaseConnection, response: dm_env_rpc_pb2.CreateWorldResponse) -> str:
    """Return the name of a new world, or raise ProtocolError if the name is too long."""
    try:
        (connection.limits or DEFAULT).check_name(response.world_name, "the name of the new world")
    except SpecError as error:
        raise ProtocolError(
            f"the server at {connection.address} sent a world name that is too long: {error}"
        ) from error
    return str(response.world_name)


def may_reopen(cause: type[object]) -> bool:
    """Whether a new connection is likely to work, given the `cause` that ended the former one."""
    return not issubclass(cause, ConnectionLostError | DeadlineExceededError)


def undo(what: str, exchange: Exchange[object]) -> Exchange[None]:
    """Run a cleanup `exchange`; log errors, saying `what` failed, instead of raising them."""
    try:
        yield from exchange
    except DmEnvRpcClientError as error:
        _log.warning("could not %s: %s", what, error)


def leave(connection: AnyConnection) -> Exchange[None]:
    """Leave the world that a connection has joined, if possible. Errors are logged."""
    if connection.is_usable:
        try:
            leaving = request(connection, dm_env_rpc_pb2.LeaveWorldRequest(), CLEAN_UP_SECONDS)
            yield from undo("leave the world", leaving)
        except BaseException as error:
            connection.interrupted(error)  # The server notices that the agent is gone.
            raise


def leave_after(error: BaseException, connection: AnyConnection) -> Exchange[None]:
    """Leave the world after an error. After an interrupt, only make the connection unusable."""
    if isinstance(error, Exception):
        yield from leave(connection)
    else:
        connection.interrupted(error)


def destroyed_if_failing(
    connection: AnyConnection, world_name: str, exchange: Exchange[Result]
) -> Exchange[Result]:
    """Run an exchange with a new world, and destroy the world if the exchange fails."""

    def guarded() -> Exchange[Result]:
        try:
            return (yield from exchange)
        except Exception:
            yield from _destroy(connection, world_name)
            raise

    return _destroyed_if_interrupted(connection, world_name, guarded())


def destroy(connection: AnyConnection, world_name: str) -> Exchange[None]:
    """Destroy a world, over a new connection if the given one is unusable. Errors are logged."""
    return _destroyed_if_interrupted(connection, world_name, _destroy(connection, world_name))


def end_world(connection: AnyConnection, world_name: str) -> Exchange[None]:
    """Leave a world, destroy it and close the connection. Errors are logged, not raised.

    All requests together take one round trip. The world is destroyed over a new connection if the
    given connection is unusable.
    """
    ending = _leave_and_destroy(connection, world_name)
    return closing(connection, _destroyed_if_interrupted(connection, world_name, ending))


def _destroyed_if_interrupted(
    connection: AnyConnection, world_name: str, exchange: Exchange[Result]
) -> Exchange[Result]:
    """Run an exchange. After an interrupt, a thread destroys the world over a new connection."""
    try:
        return (yield from exchange)
    except Exception:
        raise
    except BaseException as interrupt:
        connection.interrupted(interrupt)
        if may_reopen(type(connection.poisoned_by)):
            in_background(_destroying(connection, world_name))
        raise


def _destroying(connection: AnyConnection, world_name: str) -> Callable[[], None]:
    """Return a function that destroys a world and can be called in any thread."""
    destroying = undo("destroy the world", destroy_anew(connection._reopen, world_name))
    if isinstance(connection, Connection):
        return lambda: drive(destroying)
    return lambda: asyncio.run(adrive(destroying))


def _leave_and_destroy(connection: AnyConnection, world_name: str) -> Exchange[None]:
    if connection.is_usable:
        leaving = _leave_and_destroy_at_once(connection, world_name)
        yield from undo("leave and destroy the world", leaving)
    if connection.poisoned_by is not None:
        yield from _destroy(connection, world_name)


def _leave_and_destroy_at_once(connection: AnyConnection, world_name: str) -> Exchange[None]:
    # Both are sent before the first answer is awaited: one round trip.
    leave = dm_env_rpc_pb2.LeaveWorldRequest()
    leaving = yield Call(connection.start, leave, None, CLEAN_UP_SECONDS)
    destroy = dm_env_rpc_pb2.DestroyWorldRequest(world_name=world_name)
    destroying = yield Call(connection.start, destroy, None, CLEAN_UP_SECONDS)
    connection._finish()
    yield from undo("leave the world", answer(connection, leaving))
    if connection.poisoned_by is None:  # Otherwise the reason has been logged already.
        yield from undo("destroy the world", answer(connection, destroying))


def _destroy(connection: AnyConnection, world_name: str) -> Exchange[None]:
    if connection.is_usable:
        yield from undo("destroy the world", _send_destroy(connection, world_name))
    elif may_reopen(type(connection.poisoned_by)):
        yield from undo("destroy the world", destroy_anew(connection.reopen, world_name))


def destroy_anew(reopen: Callable[[float], Any], world_name: str) -> Exchange[None]:
    """Destroy a world over a new connection, as soon as the former connection's agent has left.

    Args:
      reopen: a function that opens the connection; called with the time limit in seconds.
      world_name: the name of the world.

    Raises:
      DmEnvRpcError: the server still refuses after `CLEAN_UP_SECONDS`. Otherwise as `reopen` and
        `Connection.send`.
    """
    deadline = time.monotonic() + CLEAN_UP_SECONDS
    fresh = yield Call(reopen, CLEAN_UP_SECONDS)
    yield from closing(fresh, _destroy_until(deadline, fresh, world_name))


def _destroy_until(deadline: float, fresh: AnyConnection, world_name: str) -> Exchange[None]:
    while True:
        try:
            yield from _send_destroy(fresh, world_name)
            return
        except DmEnvRpcError as error:
            if error.code == code_pb2.NOT_FOUND:
                return
            # The server may not have noticed yet that the other connection is closed and its agent
            # gone.
            if time.monotonic() > deadline:
                raise
        yield Sleep(DESTROY_AGAIN_SECONDS)


def _send_destroy(connection: AnyConnection, world_name: str) -> Exchange[Any]:
    message = dm_env_rpc_pb2.DestroyWorldRequest(world_name=world_name)
    return request(connection, message, CLEAN_UP_SECONDS)


Unclosed: TypeAlias = Callable[[Any, str], None]
"""The type of a function that arranges the end of a world if its environment is not closed."""


class OwnWorld:
    """The world that an environment has created, and the connection to it.

    Args:
      site: the server.
      connection: the connection.
      name: the name of the world.
      unclosed: a function that arranges the end of the world if the environment is not closed.
    """

    def __init__(self, site: Site[Any], connection: AnyConnection, name: str, unclosed: Unclosed):
        self._unclosed = unclosed
        self._is_over = False
        site.use()
        self.begin(connection, name)

    def begin(self, connection: AnyConnection, name: str) -> None:
        """Adopt a newly created world."""
        self._connection: AnyConnection | None = connection
        self._name = name
        self._unclosed(connection, name)

    def end(self) -> Exchange[None]:
        """Leave and destroy the world and close the connection. No other world can be adopted."""
        self._is_over = True
        yield from self.give_up()

    def check_not_over(self) -> Exchange[None]:
        """If the environment was closed, release the world and raise ConnectionClosedError.

        Another thread or coroutine might close the environment while this one joins a world.
        """
        if self._is_over:
            yield from self.give_up()
            raise ConnectionClosedError("the environment was closed while it was being restarted")

    def give_up(self) -> Exchange[None]:
        """Release a world that was lost or that a restart attempt has joined."""
        connection, self._connection = self._connection, None
        if connection is not None:
            yield from end_world(connection, self._name)


def end_unclosed(
    world_name: str,
    site: Site[Any],
    connection: Connection | None,
    remains: Remains,
    reopen: Reopen,
) -> None:
    """Leave and destroy the world of an unclosed environment, and release its server."""

    def end() -> None:
        try:
            if connection is None:
                _destroy_forgotten(world_name, remains, reopen)
            else:  # At exit: no thread could destroy the world after Ctrl-C.
                drive(closing(connection, _leave_and_destroy(connection, world_name)))
        finally:
            site.forget()

    (in_background if connection is None else at_exit)(end)


def end_unclosed_async(
    world_name: str,
    site: Site[Any],
    reopen: Reopen,
    is_exit: bool,
    cause: type[BaseException] | None,
) -> None:
    """Destroy the world of an unclosed environment without using its event loop."""

    def end() -> None:
        try:
            if cause is None or may_reopen(cause):
                drive(undo("destroy the world", destroy_anew(reopen, world_name)))
        finally:
            site.forget()

    (at_exit if is_exit else in_background)(end)


def _destroy_forgotten(world_name: str, remains: Remains, reopen: Reopen) -> None:
    if remains.cause is None:
        # Over the same stream, so that the same server receives it, also behind a load balancer.
        leave = dm_env_rpc_pb2.LeaveWorldRequest()
        destroy = dm_env_rpc_pb2.DestroyWorldRequest(world_name=world_name)
        messages = [encode_request(request).message for request in (leave, destroy)]
        remains.end_with(messages, CLEAN_UP_SECONDS)
        return
    remains.abort()
    if may_reopen(remains.cause):
        drive(undo("destroy the world", destroy_anew(reopen, world_name)))
