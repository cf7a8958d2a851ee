"""Decides for each request of a stream which worker answers it.

A world is created where there are fewest, and its name says where that is. All that is about a
world goes there. A stream that is joined sends its other requests there, too; one that is not is
answered by the worker that has the connection.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from google.rpc import code_pb2, status_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol.envelopes import DECODE_ERRORS
from dm_env_rpc_client.server.processes.board import Slot
from dm_env_rpc_client.server.processes.forwarding import Link, WorkerGoneError
from dm_env_rpc_client.system.owners import Owner
from dm_env_rpc_client.tensors import bounded_parsing
from dm_env_rpc_client.tensors.limits import Budget, Limits
from dm_env_rpc_client.transports.server_streams import ServerStream, StreamStatusError

_REQUEST = dm_env_rpc_pb2.EnvironmentRequest


def _tag(field: str) -> bytes:
    """Returns the first byte of a message with this payload only."""
    return bytes([_REQUEST.DESCRIPTOR.fields_by_name[field].number << 3 | 2])


# The answer has the field of the same number.
_STEP, _JOIN, _LEAVE = _tag("step"), _tag("join_world"), _tag("leave_world")

_NAME = re.compile(r"world-([0-9]{1,18})-[0-9]{1,18}")


def world_prefix(serial: int) -> str:
    """Returns what the names of a worker's worlds begin with."""
    return f"world-{serial}-"


class RoutedStream(ServerStream):
    """The server's end of one stream; a `ServerStream`.

    Args:
      local: answers what is for this worker.
      slot: what this worker knows of all.
      connect: opens a link to the worker with a serial number.
      limits: what a request may contain.
      spreads: whether the client spreads its streams over the workers.
    """

    def __init__(
        self,
        local: ServerStream,
        slot: Slot,
        connect: Callable[[int], Link],
        limits: Limits,
        spreads: bool,
    ):
        self.may_wait = False
        self.owner: Owner | None = None
        self._spreads = spreads
        self._local = local
        self._slot = slot
        self._connect = connect
        self._limits = limits
        self._links: dict[int, Link] = {}
        self._joined: ServerStream | None = None
        self._is_fresh = True
        # Where a world is created that another thread was asked to create.
        self._chosen: int | None = None
        self._is_gone = False

    def answer(self, message: bytes) -> bytes:
        joined, name = self._joined, ""
        # The worker that a request names; None for the one that has the stream's world.
        serial: int | None = None
        try:
            if joined is not None and message[:1] == _STEP:
                return joined.answer(message)
            request = self._parsed(message)
            field = request.WhichOneof("payload") or ""
            if field == "create_world":
                serial = self._chosen or self._slot.where_to_create(self._use(), self._spreads)
            elif field in ("reset_world", "destroy_world") or (
                field == "join_world" and not joined
            ):
                name = getattr(request, field).world_name
                found = _NAME.fullmatch(name)
                serial = int(found[1]) if found else None
            target = (joined or self._local) if serial is None else self._of_worker(serial)
            self._chosen = serial if field == "create_world" else None
            answer = target.answer(message)
            self._chosen = None
        except WorkerGoneError as error:
            self._chosen = None
            if serial is None:
                raise StreamStatusError(
                    "UNAVAILABLE",
                    "the process that this stream's world was in has ended, and its worlds with "
                    "it; connect again and create another",
                ) from error
            self._forget(serial)
            if field != "create_world":
                return self._refusal(name)
            # The board shows a worker for a moment after its end. Nothing of a world is left there.
            answer = self._local.answer(message)
        if field == "join_world" and answer[:1] == _JOIN:
            self._joined = target
            self.may_wait, self.owner = target.may_wait, target.owner
            if self._use():
                self._slot.add("fresh", -1)
        elif field == "leave_world" and answer[:1] == _LEAVE:
            self._joined = None
            self.may_wait, self.owner = False, None
        return answer

    def paced(self, is_slow: bool) -> None:
        self._local.paced(is_slow)

    def abandon(self) -> None:
        self._is_gone = True
        self._local.abandon()
        for link in list(self._links.values()):
            link.abandon()

    def close(self) -> None:
        if self._use():
            self._slot.add("fresh", -1)
        self._slot.add("streams", -1)
        for link in self._links.values():
            link.close()
        self._local.close()

    def _use(self) -> bool:
        """Returns whether the stream is fresh; it no longer is."""
        was, self._is_fresh = self._is_fresh, False
        return was

    def _parsed(self, message: bytes) -> dm_env_rpc_pb2.EnvironmentRequest:
        """Returns a request; an empty one if it cannot be parsed, which the session reports."""
        try:
            return bounded_parsing.parse(_REQUEST, message, Budget(self._limits), "the request")
        except (SpecError, *DECODE_ERRORS):
            return _REQUEST()

    def _of_worker(self, serial: int) -> ServerStream:
        """Returns what answers for a worker; WorkerGoneError if that has ended."""
        if serial == self._slot.row.serial:
            return self._local
        link = self._links.get(serial)
        if link is None:
            if all(row.serial != serial for row in self._slot.board.rows):
                raise WorkerGoneError
            link = self._links[serial] = self._connect(serial)
            if self._is_gone:
                link.abandon()
        return link

    def _forget(self, serial: int) -> None:
        """Closes the link to a worker that has ended."""
        link = self._links.pop(serial, None)
        if link is not None:
            link.close()

    def _refusal(self, name: str) -> bytes:
        """Returns the answer to a request for a world of a worker that has ended."""
        text = f"no world {name!r}: the process that it was in has ended; create another"
        error = status_pb2.Status(code=code_pb2.NOT_FOUND, message=text)
        return dm_env_rpc_pb2.EnvironmentResponse(error=error).SerializeToString()
