"""A server's transport layer: a listener that opens a stream for each call from a client.

This module is the server-side counterpart of `streams.py`. A listener transfers bytes; it does not
interpret messages and knows nothing about worlds. A client can have several streams on one
connection, and the streams do not wait for each other.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

from dm_env_rpc_client import arguments
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.system.owner_threads import ElsewhereError, Owner, OwnerGoneError
from dm_env_rpc_client.transports.net.addresses import check_address, is_loopback
from dm_env_rpc_client.transports.net.credentials import check_server_credentials
from dm_env_rpc_client.transports.net.metadata import Token
from dm_env_rpc_client.transports.streams import MAX_MESSAGE_BYTES, Allocate, plain_memory


class StreamStatusError(Exception):
    """An error that ends one stream with a gRPC status; other streams continue.

    Args:
      code: the name of the status, such as "INVALID_ARGUMENT".
      message: the text for the client.
    """

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


def full_error(max_streams: int) -> StreamStatusError:
    """Return the status error for a stream that exceeds the limit."""
    return StreamStatusError(
        "RESOURCE_EXHAUSTED", f"the server has reached its limit of {max_streams} streams"
    )


@dataclasses.dataclass(frozen=True)
class Peer:
    """The client at the other end of a stream.

    Attributes:
      address: the client's address for log messages, in gRPC's syntax.
      metadata: the client's metadata, as ordered pairs of a lower-case key and a value. Values can
        be secret, so they appear in no error message or log.
    """

    address: str
    metadata: tuple[tuple[str, str | bytes], ...] = dataclasses.field(default=(), repr=False)


class Parts(NamedTuple):
    """A large answer in parts, which go to the socket without a copy in between.

    The parts are in memory that the environment may change in its next step.
    """

    size: int
    """The size of all parts, in bytes."""

    buffers: list[Any]
    """The parts in order. Each is bytes or a contiguous array."""

    def joined(self) -> bytes:
        """Return a copy of all parts in one piece."""
        return b"".join(self.buffers)


class ServerStream(Protocol):
    """The server's end of one stream, called by the listener from one thread at a time."""

    may_wait: bool
    """Whether the next answer might wait for other streams and therefore needs its own thread."""

    owner: Owner | None = None
    """The owner that calls `answer` and `close`, or None if any thread can call them. Answering
    a request can change the owner."""

    idle_since: float | None = None
    """The time on the monotonic clock since which the stream has had no request to answer; None
    while it has one, and once the client has created or joined a world."""

    def answer(self, message: bytes) -> bytes:
        """Return the answer to a request. Each request gets exactly one answer, in order.

        This method can block, for instance in a step that waits for other agents. Meanwhile, the
        listener must not delay other streams.

        Raises:
          StreamStatusError: the stream ends with this status, after all earlier answers.
          ElsewhereError: an owner called this method, which did nothing. A thread that owns
            nothing must call it again with the same request, whatever `owner` is.
        """

    def answer_in_parts(self, message: bytes) -> bytes | Parts:
        """Return the answer to a request like `answer`, but a large answer may be in parts.

        The calling thread sends or copies the parts before it calls this stream or another one.
        """
        return self.answer(message)

    def paced(self, is_slow: bool) -> None:
        """Record whether answers are slow (`is_slow`). Only `owner` calls this method."""
        del is_slow  # Most streams have no owner.

    def abandon(self) -> None:
        """Make a waiting `answer` give up because the client is gone or the stream has ended.

        This method is called at most once, from any thread, even while `answer` runs, and `close`
        is called afterwards. It does not block.
        """

    def close(self) -> None:
        """Free the stream's resources.

        The listener calls this method once, after the last `answer` has returned or raised an
        error, whether the client ended the stream or disconnected, or the server stops.
        """


def answer_by_owner(stream: ServerStream, message: bytes) -> bytes:
    """Answer a message in the stream owner's thread, on behalf of a thread that owns nothing."""
    owner = stream.owner
    if owner is None:
        return stream.answer(message)
    try:
        return owner.call(stream.answer, message)
    except ElsewhereError:
        # The stream has left that owner, or waits for another; this thread may wait.
        return stream.answer(message)
    except OwnerGoneError as error:
        raise StreamStatusError("UNAVAILABLE", "the server was stopped") from error


def close_by_owner(stream: ServerStream) -> None:
    """Close a stream in its owner's thread, on behalf of a thread that owns nothing."""
    owner = stream.owner
    if owner is None:
        stream.close()
        return
    try:
        owner.call(stream.close)
    except OwnerGoneError:
        # The owner has ended, so no other thread uses the stream.
        stream.close()


OpenStream: TypeAlias = Callable[[Peer], ServerStream]
"""A function that is called for each new stream, before any request is read.

If the function raises StreamStatusError, the stream ends immediately with that status.
"""


def requiring_token(token: str, open_stream: OpenStream) -> OpenStream:
    """Return a function that opens streams for clients with the token, and refuses other clients.

    Raises:
      SpecError: `token` is invalid.
    """
    required = Token(token)

    def open_admitted(peer: Peer) -> ServerStream:
        is_right = required.is_in(peer.metadata)
        if is_right is None:
            raise StreamStatusError(
                "UNAUTHENTICATED",
                "this server requires a token in the metadata 'authorization: Bearer <token>', "
                "but the call has none; pass token= to make or connect, or --token-file to "
                "dm-env-rpc",
            )
        if not is_right:
            raise StreamStatusError(
                "UNAUTHENTICATED",
                "the token in the metadata 'authorization' is not valid for this server",
            )
        return open_stream(peer)

    return open_admitted


@dataclasses.dataclass(frozen=True)
class ListenerOptions:
    """The streams that a listener serves, and their limits.

    Attributes:
      open_stream: a function that creates the server's end of each stream.
      max_streams: the maximum number of streams. Further streams are refused with
        RESOURCE_EXHAUSTED.
      max_message_bytes: the maximum size of a request, in bytes.
      allocate: a function that returns memory for a large request.
      refused: a function called for each refused stream, with the client's address and the reason.
    """

    open_stream: OpenStream
    max_streams: int
    max_message_bytes: int = MAX_MESSAGE_BYTES
    allocate: Allocate = plain_memory
    refused: Callable[[str, str], None] = lambda *_: None


IDLE_SECONDS = 10.0
"""The time, in seconds, after which a stream without a world loses its place to another one if the
server has reached its limit."""


class MayIdle(Protocol):
    """A stream that is registered in a `Room`."""

    @property
    def idle_since(self) -> float | None:
        """As `ServerStream.idle_since`."""


class Room:
    """A thread-safe count of a listener's streams, with a limit.

    At the limit, a new stream takes the place of the one that has been idle longest without a
    world. Otherwise a stranger who only opens streams would lock out everybody else.

    Args:
      options: the options with the limit, and with the callback for refused streams.

    Attributes:
      count: the number of streams.
    """

    def __init__(self, options: ListenerOptions):
        self.count = 0
        self._options = options
        self._lock = make_lock()
        self._drops: dict[MayIdle, Callable[[StreamStatusError], object]] = {}

    def enter(self, client: str) -> None:
        """Count a client's stream, or raise StreamStatusError if there are too many streams."""
        while True:
            with self._lock:
                # Compared and counted under one lock; the callbacks run without it.
                is_full = self.count >= self._options.max_streams
                self.count += not is_full
                idlest = self._idlest() if is_full else None
                drop = None if idlest is None else self._drops.pop(idlest)
                self.count -= drop is not None
            if drop is not None:
                drop(self._dropped())
            elif not is_full:
                return
            else:
                break
        full = full_error(self._options.max_streams)
        self._options.refused(client, f"{full.code}: {full}")
        raise full

    def admit(self, stream: MayIdle, drop: Callable[[StreamStatusError], object]) -> None:
        """Register a counted stream.

        Args:
          stream: the stream.
          drop: a function that ends the stream with an error. `leave` then does not count.
        """
        with self._lock:
            self._drops[stream] = drop

    def leave(self, stream: MayIdle | None = None) -> None:
        """Remove an ended stream from the count, or one that was counted but not registered."""
        with self._lock:
            if stream is None or self._drops.pop(stream, None) is not None:
                self.count -= 1

    def _idlest(self) -> MayIdle | None:
        since = {stream: stream.idle_since or math.inf for stream in self._drops}
        idlest = min(since, key=since.__getitem__, default=None)
        if idlest is None or since[idlest] > time.monotonic() - IDLE_SECONDS:
            return None
        return idlest

    def _dropped(self) -> StreamStatusError:
        full = full_error(self._options.max_streams)
        return StreamStatusError(
            full.code,
            f"{full}, and this one made room for another client: it had neither created nor joined "
            f"a world and had sent nothing for {IDLE_SECONDS:g} s; connect again",
        )


class Listener(Protocol):
    """A listening server, which accepts streams as soon as it is created."""

    address: str
    """The listening address with the actual port, such as "localhost:40123"."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds for the server to stop, and return whether it has."""

    def stop(self, grace: float) -> None:
        """Refuse new streams, and wait until no stream is open.

        Open streams may continue for `grace` seconds and are then cancelled. A blocked `answer`
        is not interrupted: its stream is closed when it returns, possibly after `stop` has
        returned.
        """

    def abort(self) -> None:
        """Cancel all streams and stop, without waiting."""


def check_may_listen(address: str, credentials: object | None, insecure: bool) -> None:
    """Check the address and credentials of a server before it listens.

    Args:
      address: `host:port` or `unix:path`.
      credentials: TLS credentials; None for plaintext.
      insecure: whether plaintext is allowed on any address.

    Raises:
      SpecError: an argument has the wrong type, or plaintext is not allowed because other machines
        can reach the address.
    """
    check_address(address, "an address to listen on", listens=True)
    check_server_credentials(credentials)
    arguments.flag("insecure", insecure)
    if credentials is None and not insecure and not is_loopback(address):
        raise SpecError(
            f"plaintext is allowed on loopback addresses only, but other machines can reach "
            f"{address}; pass credentials=Tls(cert=FILE, key=FILE) or insecure=True"
        )
