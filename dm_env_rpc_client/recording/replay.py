"""A server that replays a recording: the same requests get the same answers, byte for byte.

Tests of an agent or a client can use this server in place of an environment.
"""

from __future__ import annotations

import collections
import functools
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.rpc import code_pb2

from dm_env_rpc_client import arguments
from dm_env_rpc_client.errors import RecordingError
from dm_env_rpc_client.protocol.envelopes import (
    DECODE_ERRORS,
    EnvironmentRequest,
    EnvironmentResponse,
)
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.recording.reader import Scan, check_reading
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.tensors import bounded_parsing
from dm_env_rpc_client.tensors.memory_limits import DEFAULT, Budget, Limits
from dm_env_rpc_client.transports.endpoint import Transport, check_transport
from dm_env_rpc_client.transports.listeners import open_listener
from dm_env_rpc_client.transports.server_streams import (
    ListenerOptions,
    OpenStream,
    ServerStream,
    check_may_listen,
)

_log = logging.getLogger(__name__)

_WITH_SEQUENCES = ("step", "reset", "join_world", "leave_world")

_MAX_STREAMS = 256
"""The maximum number of clients; further clients are refused with RESOURCE_EXHAUSTED."""

_SHOWN = 400
"""The maximum length, in characters, of a request quoted in an error message."""


def replay(
    path: str | os.PathLike[str],
    address: str = "localhost:0",
    *,
    insecure: bool = False,
    transport: Transport = "auto",
    limits: Limits = DEFAULT,
    lenient: bool = False,
) -> Serving:
    """Serve a recording.

    Each client is served the first unused recorded connection that begins with the same request
    or, if all are used, the least recently used one. A request other than the next recorded one
    gets the error FAILED_PRECONDITION, a request after the last one OUT_OF_RANGE, and a request
    without a recorded answer UNAVAILABLE. These errors change nothing: the recorded request may
    follow. Requests are compared as messages, regardless of the order of fields and map entries.
    The actions of a step that begins a sequence are not compared, since environments ignore them,
    so a recording of `unroll` can be stepped with `reset` and `step`.

    Args:
      path: the recording. If its recorder was killed, it is served up to the last complete chunk.
      address: `host:port` or `unix:path`; port 0 selects a free port.
      insecure: allow an address that other machines can reach.
      transport: as for `serve`.
      limits: limits for messages and chunks of the recording, for each connection; the first
        requests of all connections together count as a chunk.
      lenient: whether any request of the recorded kind, such as a step with other actions, gets
        the recorded answer. The first deviation of a connection is logged as a warning. When the
        connection ends, the number of deviations is logged.

    Returns:
      The running server. `.address` is its address; `.stop()` or the end of a `with` block stops
      it.

    Raises:
      RecordingError: the file is not a recording, is damaged, exceeds the limits, or has no
        requests.
      SpecError: an argument has the wrong type, or other machines can reach the address and
        `insecure` is False.
      OSError: the address is in use, or does not belong to this machine.
    """
    check_may_listen(address, None, insecure)
    check_transport(transport)
    check_reading(path, limits)
    arguments.flag("lenient", lenient)
    shelf = _Shelf(Path(path), limits, lenient)
    return Serving(lambda peer: _ReplayedStream(shelf), address, transport)


class Serving:
    """A running server, returned by `replay` and `proxy`.

    Args:
      open_stream: creates the server's end of a stream.
      address: the address to listen on, in plaintext.
      transport: the transport of the listener.
      finish: called after the server has stopped.

    Attributes:
      address: the server's address, such as "localhost:40123".

    Raises:
      OSError: the address is in use, or does not belong to this machine.
    """

    def __init__(
        self,
        open_stream: OpenStream,
        address: str,
        transport: Transport,
        finish: Callable[[], None] = lambda: None,
    ):
        options = ListenerOptions(open_stream, _MAX_STREAMS)
        self._listener = open_listener(options, address, None, transport)
        self.address = self._listener.address
        self._finish = finish

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the server stops.

        Args:
          timeout: time limit in seconds; 0 to check once, None for no limit.

        Returns:
          Whether it stopped.

        Raises:
          SpecError: the timeout is neither None nor a non-negative number.
        """
        none = arguments.NO_LIMIT
        return self._listener.wait(arguments.seconds("timeout", timeout, least=0.0, none=none))

    def stop(self) -> None:
        """Stop serving and, for a recording proxy, complete the file."""
        self._listener.stop(0.0)
        self._finish()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


class _Request:
    """A request, parsed on demand within the default limits.

    Args:
      content: the serialized message.
    """

    def __init__(self, content: bytes):
        self.content = content

    @functools.cached_property
    def message(self) -> Any:
        """The EnvironmentRequest, or an empty one if the bytes cannot be parsed."""
        try:
            return bounded_parsing.parse(EnvironmentRequest, self.content, Budget(), "the request")
        except DECODE_ERRORS:
            return EnvironmentRequest()

    @property
    def kind(self) -> str:
        """The protocol's name for this kind of request, or "" if parsing fails."""
        return self.message.WhichOneof("payload") or ""

    def is_same(self, other: _Request) -> bool:
        """Whether the messages are equal, regardless of the order of fields and map entries."""
        return self.content == other.content or bool(
            self.kind and self._canonical == other._canonical
        )

    @property
    def _canonical(self) -> bytes:
        """The message serialized in a deterministic order."""
        return bytes(self.message.SerializeToString(deterministic=True))

    def __str__(self) -> str:
        size = len(self.content)
        if size > bounded_parsing.SMALL_BYTES:
            return f"a request of {size} bytes"
        text = text_format.MessageToString(self.message, as_one_line=True)
        if not text:
            return f"{size} bytes of an unknown request"
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({size} bytes)"


class _Shelf:
    """The recorded connections, in the order in which they are served, shared by all streams."""

    def __init__(self, path: Path, limits: Limits, lenient: bool):
        self.path = path
        self.limits = limits
        self.lenient = lenient
        self._mutex = make_lock()
        self._firsts: dict[int, bytes] = {}
        scan = Scan(path, limits)
        for entry in scan:
            if entry.is_request and entry.connection.number not in self._firsts:
                scan.budget.hold(len(entry.message))
                self._firsts[entry.connection.number] = entry.message
        if not self._firsts:
            raise RecordingError(f"the recording {path} contains no requests to replay")
        self._order = list(self._firsts)

    def take(self, request: _Request) -> int | None:
        """Return the recorded connection for a client's first request, or None if none matches."""
        with self._mutex:
            same = (each for each in self._order if _Request(self._firsts[each]).is_same(request))
            number = next(same, None)
            if number is None:
                number = self._order[0]
                if not (self.lenient and _Request(self._firsts[number]).kind == request.kind != ""):
                    return None
            self._order.remove(number)
            self._order.append(number)
            return number

    def first_requests(self) -> str:
        """Describe the distinct first requests of the connections."""
        return " or ".join(dict.fromkeys(str(_Request(each)) for each in self._firsts.values()))


class _ReplayedStream(ServerStream):
    """The server's end of a stream, which reads the recording as requests arrive."""

    may_wait = False

    def __init__(self, shelf: _Shelf):
        self._shelf = shelf
        self._number: int | None = None
        self._exchanges: Iterator[tuple[bytes, bytes | None]] = iter(())
        self._next: tuple[bytes, bytes | None] | None = None
        self._answered = 0
        # The answer to the last step, which shows whether a sequence is running.
        self._latest = b""
        self._deviations = 0

    def answer(self, message: bytes) -> bytes:
        request = _Request(bytes(message))
        name = self._shelf.path.name
        if self._number is None:
            self._number = self._shelf.take(request)
            if self._number is None:
                return _error(
                    code_pb2.FAILED_PRECONDITION,
                    f"no connection of the recording {name} begins with {request}; expected "
                    f"{self._shelf.first_requests()}",
                )
            self._exchanges = _exchanges(self._shelf, self._number)
            self._next = next(self._exchanges, None)
        place = f"request {self._answered + 1} of connection {self._number} of the recording {name}"
        if self._next is None:
            return _error(
                code_pb2.OUT_OF_RANGE,
                f"{place} is {request}, but only {self._answered} requests were recorded",
            )
        recorded, answer = _Request(self._next[0]), self._next[1]
        if not recorded.is_same(request) and not self._differs_in_ignored_actions(
            recorded, request
        ):
            difference = f"{place} is {request}; expected {recorded}"
            if not self._shelf.lenient or not recorded.kind == request.kind != "":
                return _error(code_pb2.FAILED_PRECONDITION, difference)
            if not self._deviations:
                _log.warning("the first deviation: %s", difference)
            self._deviations += 1
        if answer is None:
            return _error(code_pb2.UNAVAILABLE, f"{place} ({recorded}) has no recorded answer")
        if recorded.kind in _WITH_SEQUENCES:
            self._latest = answer if recorded.kind == "step" else b""
        self._answered += 1
        self._next = next(self._exchanges, None)
        return answer

    def _differs_in_ignored_actions(self, recorded: _Request, request: _Request) -> bool:
        """Whether both requests begin a sequence and differ only in their actions."""
        if not recorded.kind == request.kind == "step":
            return False
        try:
            response = bounded_parsing.parse(
                EnvironmentResponse, self._latest, Budget(self._shelf.limits), "the answer"
            )
        except DECODE_ERRORS:
            return False
        if response.step.state == State.RUNNING.number:
            return False
        others = []
        for each in (recorded, request):
            others.append(EnvironmentRequest())
            others[-1].CopyFrom(each.message)
            others[-1].step.ClearField("actions")
        return bool(others[0] == others[1])

    def abandon(self) -> None:
        pass

    def close(self) -> None:
        if self._deviations:
            _log.warning(
                "%d of %d requests of connection %s deviated from the recording %s",
                self._deviations, self._answered, self._number, self._shelf.path.name,
            )  # fmt: skip
            self._deviations = 0
        self._exchanges = iter(())


def _exchanges(shelf: _Shelf, number: int) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield each request of a connection with its answer, followed by the unanswered requests."""
    requests: collections.deque[bytes] = collections.deque()
    scan = Scan(shelf.path, shelf.limits)
    for entry in scan:
        if entry.connection.number == number:
            if entry.is_request:
                scan.budget.hold(len(entry.message))
                requests.append(entry.message)
            elif requests:
                request = requests.popleft()
                scan.budget.release(len(request))
                yield request, entry.message
    for request in requests:
        yield request, None


def _error(code: int, text: str) -> bytes:
    response = EnvironmentResponse()
    response.error.code = code
    response.error.message = text
    return bytes(response.SerializeToString())
