"""The streams of a listener: how they are opened, counted and closed."""

from __future__ import annotations

import logging

from dm_env_rpc_client.system.waiting import InterruptibleCondition
from dm_env_rpc_client.transports.http2.protocol.server_half import ServerCall
from dm_env_rpc_client.transports.http2.server.connection import ServedStream, ServerConnection
from dm_env_rpc_client.transports.net.status import PROCESS
from dm_env_rpc_client.transports.server_streams import (
    ListenerOptions,
    Peer,
    Room,
    StreamStatusError,
)
from dm_env_rpc_client.transports.services import open_own

_log = logging.getLogger(__name__)


class Streams:
    """The streams.

    Args:
      options: what is served.
      changed: is told when fewer are open.

    Attributes:
      room: counts those that are open, those of the services that every server has left out.
    """

    def __init__(self, options: ListenerOptions, changed: InterruptibleCondition):
        self.room = Room(options)
        self._options = options
        self._changed = changed

    def open(self, connection: ServerConnection, call: ServerCall) -> None:
        """Opens a stream, or ends the call with the reason; called by the thread that leads."""
        try:
            served = self._served(connection, call)
        except StreamStatusError as error:
            with connection.lock:
                call.finish(error.code, str(error))
        except BaseException:
            _log.exception("opening a stream of %s failed", connection.address)
            with connection.lock:
                call.finish("INTERNAL", "the server failed to open the stream")
        else:
            call.shell = served
            if served is not None:
                connection.served.add(served)

    def _served(self, connection: ServerConnection, call: ServerCall) -> ServedStream | None:
        if call.is_over:
            return None
        own = open_own(call.path)
        if own is not None:
            served = ServedStream(connection, call, own.stream)
            served.is_unary, served.stays = own.is_unary, own.stays
            return served
        if call.path != PROCESS:
            raise StreamStatusError("UNIMPLEMENTED", f"no such method; this server has {PROCESS}")
        self.room.enter(connection.address)
        try:
            stream = self._options.open_stream(Peer(connection.address, call.metadata))
        except BaseException:
            self.room.leave()
            raise
        served = ServedStream(connection, call, stream)
        served.is_counted = connection.is_known = True
        with connection.lock:
            call.accept()
        return served

    def close(self, served: ServedStream) -> None:
        """Closes a stream; called by the thread that answers it. A second call does nothing."""
        with served.condition:
            if served.is_closed:
                return
            served.is_closed = True
            served.waiting.clear()
        served.call.shell = None
        connection = served.connection
        with connection.lock:
            connection.stalled.discard(served)
        if served.stream.owner is not None:
            served.stream.owner.slow.discard(served)
        try:
            served.stream.close()
        except BaseException:
            _log.exception("closing a stream of %s failed", connection.address)
        connection.served.discard(served)
        if served.is_counted:
            self.room.leave()
            self._changed.notify_all()
