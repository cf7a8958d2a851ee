"""The server's end of a client stream, which forwards requests without unpacking their values.

A world is created in the worker with the fewest worlds, and all requests about the world go to
that worker. A stream that has joined a world also sends its other requests to that world's worker.
Until a stream joins a world, it sends these requests to a worker to which it is already connected.
The server's own process hosts the batches whose rows are spread over the workers.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import Protocol

from dm_env_rpc_client._proto import dm_env_rpc_pb2, properties_pb2
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol.envelopes import DECODE_ERRORS
from dm_env_rpc_client.server.host import WAITING_FOR
from dm_env_rpc_client.server.processes.registry import WorkerShare
from dm_env_rpc_client.system import owner_threads
from dm_env_rpc_client.system.message_pipe import MessagePipe
from dm_env_rpc_client.system.owner_threads import ElsewhereError, Owner
from dm_env_rpc_client.tensors import bounded_parsing
from dm_env_rpc_client.tensors.memory_limits import Budget, Limits
from dm_env_rpc_client.transports.server_streams import (
    Peer,
    ServerStream,
    StreamStatusError,
    answer_by_owner,
    close_by_owner,
)

_REQUEST = dm_env_rpc_pb2.EnvironmentRequest


def _tag(field: str) -> bytes:
    """Return the first byte of a message whose only payload is `field`."""
    return bytes([_REQUEST.DESCRIPTOR.fields_by_name[field].number << 3 | 2])


# The answer has the field of the same number.
_CREATE, _JOIN, _LEAVE = _tag("create_world"), _tag("join_world"), _tag("leave_world")
STEP = _tag("step")

_OF_THE_JOINED = ("step", "reset", "leave_world", "extension")
"""Requests answered in the process that hosts the joined world, unless they concern a
`waiting_for.` property."""

ANSWER, STATUS = b"\0", b"\1"
"""The first byte of a worker's message: `ANSWER` marks an answer, and `STATUS` the pickled status
that ends the stream."""


class WorkerGoneError(Exception):
    """Raised when the worker that should answer a request has ended.

    Args:
      may_have_begun: whether it may have begun to execute the request.
    """

    def __init__(self, may_have_begun: bool):
        super().__init__()
        self.may_have_begun = may_have_begun


class Link:
    """The connection of one stream to a worker.

    Args:
      pipe: a pipe to the worker, which might not have received its end yet.
      share: the share of the worker.

    Attributes:
      share: as the argument.
      may_wait: as of a `ServerStream`.
      owner: the same.
    """

    may_wait = True
    owner: Owner | None = None

    def __init__(self, pipe: MessagePipe, share: WorkerShare):
        self.share = share
        self._pipe = pipe
        self._is_abandoned = False

    def answer(self, message: bytes) -> bytes:
        """Return the worker's answer to a request.

        Raises:
          WorkerGoneError: the worker has ended.
          StreamStatusError: as `ServerStream.answer`.
        """
        may_have_begun = False
        try:
            self._pipe.send(message)
            # Set before the answer: a worker that ends now may have begun to execute the request.
            may_have_begun = True
            answer = self._pipe.receive().message
        except (OSError, EOFError) as error:
            # Shut down by `abandon`; the worker has not ended.
            if self._is_abandoned:
                raise StreamStatusError("CANCELLED", "the client is gone") from error
            raise WorkerGoneError(may_have_begun) from error
        if answer[:1] == STATUS:
            raise StreamStatusError(*pickle.loads(answer[1:]))
        # Without its first byte, and with one copy.
        return bytes(memoryview(answer)[1:])

    def paced(self, is_slow: bool) -> None:
        """Ignore `is_slow`; see `ServerStream.paced`."""

    def abandon(self) -> None:
        """Shut down the pipe, so that the worker ends the stream and `answer` fails."""
        self._is_abandoned = True
        self._pipe.shut_down()

    def close(self) -> None:
        """Close this end of the pipe."""
        self._pipe.shut_down()
        self._pipe.close()


class LinkHere(Link):
    """The connection of a stream to the batches in the server's own process.

    Args:
      session: answers the requests.
      share: the share of this process.
    """

    def __init__(self, session: ServerStream, share: WorkerShare):
        self.share = share
        self._session = session

    def answer(self, message: bytes) -> bytes:
        """Return the answer to a request.

        Raises:
          ElsewhereError: the requested batch must be in a worker.
          StreamStatusError: as `ServerStream.answer`.
        """
        answer = answer_by_owner(self._session, message)
        # The owner of a joined batch answers its stream, without another thread in between.
        self.owner, self.may_wait = self._session.owner, self._session.owner is None
        return answer

    def paced(self, is_slow: bool) -> None:
        self._session.paced(is_slow)

    def abandon(self) -> None:
        self._session.abandon()

    def close(self) -> None:
        close_by_owner(self._session)


class Places(Protocol):
    """The interface for finding the workers that host worlds and for connecting to them."""

    def place(self, is_gone: Callable[[], bool]) -> WorkerShare:
        """Choose a worker for a new world, add the world to its count, and return its share.

        Waits until there is a worker.

        Args:
          is_gone: whether the client is gone.

        Raises:
          StreamStatusError: the client is gone, or the server is stopping.
        """

    def was_not_created(self, share: WorkerShare) -> None:
        """Record that a world was not created in the worker chosen for it."""

    def here_for(self, request: dm_env_rpc_pb2.CreateWorldRequest) -> WorkerShare | None:
        """Return this process's share if the new world is a batch to spread over the workers."""

    def is_here(self, share: WorkerShare) -> bool:
        """Return whether a share belongs to this process rather than to a worker."""

    def of(self, name: str) -> WorkerShare | None:
        """Return the share of the process that hosts a world, or None if no process does."""

    def connect(self, share: WorkerShare, peer: Peer) -> Link:
        """Return a new connection to a worker.

        Raises:
          WorkerGoneError: the worker has ended.
        """

    def lost(self, share: WorkerShare) -> None:
        """Record that a worker has ended."""


def _asks_for_waiting(request: dm_env_rpc_pb2.EnvironmentRequest) -> bool:
    """Return whether a request might concern a `waiting_for.` property."""
    return WAITING_FOR.encode() in request.extension.value


def _created_name(answer: bytes) -> str:
    """Return the name in the answer to a CreateWorld."""
    return str(dm_env_rpc_pb2.EnvironmentResponse.FromString(answer).create_world.world_name)


class PassedStream(ServerStream):
    """A `ServerStream` whose requests are answered by workers.

    Args:
      places: the workers.
      peer: the client.
      limits: the limits of a request.
      ended: called when the stream has ended.
    """

    def __init__(self, places: Places, peer: Peer, limits: Limits, ended: Callable[[], None]):
        self._places = places
        self._peer = peer
        self._limits = limits
        self._ended = ended
        self._links: dict[WorkerShare, Link] = {}
        self._joined: Link | None = None
        # The name of the world created last, which JoinWorld may leave out.
        self._created = ""
        self._is_gone = False
        self.may_wait = True
        self.owner: Owner | None = None
        self._had_world = False
        self.idle_since: float | None = time.monotonic()

    def answer(self, message: bytes) -> bytes:
        joined = self._joined
        try:
            # The hot path: a step is recognised by its first byte and passed on unparsed.
            if joined is not None and message[:1] == STEP:
                return joined.answer(message)
            return self._pass(message)
        except WorkerGoneError as error:
            raise StreamStatusError(
                "UNAVAILABLE",
                "the process hosting this stream's world has ended, and all of its worlds are "
                "lost; connect again and create another world",
            ) from error

    def paced(self, is_slow: bool) -> None:
        if self._joined is not None:
            self._joined.paced(is_slow)

    def abandon(self) -> None:
        self._is_gone = True
        for link in list(self._links.values()):
            link.abandon()

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._ended()

    def _pass(self, message: bytes) -> bytes:
        """Pass a request on and return its answer; raise WorkerGoneError as `Link.answer` does."""
        self.idle_since = None
        try:
            answer = self._passed(message)
            self._had_world = self._had_world or answer[:1] in (_CREATE, _JOIN)
        finally:
            if not self._had_world:
                self.idle_since = time.monotonic()
        return answer

    def _passed(self, message: bytes) -> bytes:
        request = self._parsed(message)
        field = request.WhichOneof("payload") or ""
        if field not in _OF_THE_JOINED or _asks_for_waiting(request):
            owner_threads.require_no_owner()  # Another process answers, and the thread waits.
        if field == "join_world" and not request.join_world.world_name:
            # The worker does not know whether the stream has created another world elsewhere.
            request.join_world.world_name = self._created
            message = request.SerializeToString()
        while True:
            here = None
            if field == "create_world":
                here = self._places.here_for(request.create_world)
                share = here or self._places.place(lambda: self._is_gone)
            else:
                share = self._for(request, field)
            answer = b""
            try:
                link = self._link_to(share)
                answer = link.answer(message)
                break
            except ElsewhereError:
                if here is None:
                    raise
                # The environment is a batch itself, as `here_for` knows from now on.
            except WorkerGoneError as error:
                self._forget(share)
                # Passed to another worker, a request that has ended one could end them all.
                if error.may_have_begun:
                    raise StreamStatusError(
                        "UNAVAILABLE",
                        "the process answering the request has ended, and all of its worlds are "
                        "lost; it is unknown whether the request took effect",
                    ) from error
            finally:
                # No world is in the worker after an error or a lost worker, so the count goes down.
                if field == "create_world" and here is None and answer[:1] != _CREATE:
                    self._places.was_not_created(share)
        if field == "create_world":
            is_created = answer[:1] == _CREATE
            self._created = _created_name(answer) if is_created else ""
        elif field == "join_world" and answer[:1] == _JOIN:
            self._joined, self.owner, self.may_wait = link, link.owner, link.may_wait
        elif field == "leave_world" and answer[:1] == _LEAVE:
            self._joined, self.owner, self.may_wait = None, None, True
        return answer

    def _for(self, request: dm_env_rpc_pb2.EnvironmentRequest, field: str) -> WorkerShare:
        """Return the share of the process that answers a request other than CreateWorld."""
        joined = self._joined
        named: WorkerShare | None = None
        if field in ("reset_world", "destroy_world") or (field == "join_world" and not joined):
            named = self._places.of(getattr(request, field).world_name)
        elif _asks_for_waiting(request):
            asked = properties_pb2.PropertyRequest()
            if request.extension.Unpack(asked):
                named = self._places.of(asked.read_property.key.removeprefix(WAITING_FOR))
        if named is not None:
            return named
        if joined is not None:
            return joined.share
        # A worker that the stream is connected to: a new link costs a pipe and a thread there.
        for share in self._links:
            if not self._places.is_here(share):
                return share
        share = self._places.place(lambda: self._is_gone)
        # Placed only to distribute streams evenly; no world follows.
        self._places.was_not_created(share)
        return share

    def _parsed(self, message: bytes) -> dm_env_rpc_pb2.EnvironmentRequest:
        """Return a parsed request, or an empty one if parsing fails (the session reports that)."""
        try:
            return bounded_parsing.parse(_REQUEST, message, Budget(self._limits), "the request")
        except (SpecError, *DECODE_ERRORS):
            return _REQUEST()

    def _link_to(self, share: WorkerShare) -> Link:
        link = self._links.get(share)
        if link is None:
            link = self._links[share] = self._places.connect(share, self._peer)
            # `abandon` came between the look-up and the new link, and has missed the link.
            if self._is_gone:
                link.abandon()
        return link

    def _forget(self, share: WorkerShare) -> None:
        """Close the link to a worker that has ended.

        Raises:
          WorkerGoneError: the world that the stream has joined was in this worker.
        """
        self._places.lost(share)
        link = self._links.pop(share, None)
        if link is not None:
            link.close()
            if link is self._joined:
                raise WorkerGoneError(True)
