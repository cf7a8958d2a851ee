"""A server that answers as a recorded one did: the same requests get the same answers.

No environment is needed, so that tests of an agent or a client run without it. Answers are the
recorded bytes.
"""

from __future__ import annotations

import collections
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.rpc import code_pb2

from dm_env_rpc_client.errors import RecordingError
from dm_env_rpc_client.protocol.envelopes import (
    DECODE_ERRORS,
    EnvironmentRequest,
    EnvironmentResponse,
)
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.recording.reading import Scan
from dm_env_rpc_client.recording.serving import MAX_STREAMS, Serving
from dm_env_rpc_client.tensors import bounded_parsing
from dm_env_rpc_client.tensors.limits import DEFAULT, Budget, Limits
from dm_env_rpc_client.transports.endpoint import Transport
from dm_env_rpc_client.transports.listeners import open_listener
from dm_env_rpc_client.transports.server_streams import ListenerOptions, Peer, check_may_listen

__all__ = ["replay"]

_log = logging.getLogger(__name__)

_WITH_SEQUENCES = ("step", "reset", "join_world", "leave_world")

_SHOWN = 400
"""How much of a request errors show, in characters."""


def replay(
    path: str | os.PathLike[str],
    address: str = "localhost:0",
    *,
    insecure: bool = False,
    transport: Transport = "auto",
    limits: Limits = DEFAULT,
    lenient: bool = False,
) -> Serving:
    """Serves a recording.

    A connection gets the answers of the first recorded connection that begins with the same
    request and was not served yet; if all were served, of the one that was served the longest time
    ago. A request that is not the next recorded one is answered with the error FAILED_PRECONDITION,
    one after the last with OUT_OF_RANGE, and one that had no answer with UNAVAILABLE. They change
    nothing: the recorded request may follow. Requests are the same if their messages are, whatever
    the order of their fields and maps. The actions of a step that begins a sequence are not
    compared, since environments ignore them: what was recorded with `unroll` can be stepped with
    `reset` and `step`.

    Args:
      path: the recording. One whose recorder was killed is served up to its last whole chunk.
      address: `host:port` or `unix:path`; port 0 selects a free port.
      insecure: allow an address that other machines can reach.
      transport: as for `serve`.
      limits: what a message and a chunk of the recording may take, for each connection; the first
        requests of all connections together, as a chunk.
      lenient: whether a request of the same kind as the recorded one gets its answer, too, such as
        a step with other actions. Where a connection deviates first is logged, as a warning, and
        how often it did when it ends.

    Returns:
      The running server; `.address` is where it listens, `.stop()` or the end of a `with` block
      stops it.

    Raises:
      RecordingError: the file is not a recording, is damaged, exceeds the limits, or has no
        requests.
      SpecError: an address that other machines can reach, without `insecure`.
      OSError: the address is taken, or does not belong to this machine.
    """
    check_may_listen(address, None, insecure)
    shelf = _Shelf(Path(path), limits, lenient)
    options = ListenerOptions(lambda peer: _ReplayedStream(shelf, peer), MAX_STREAMS)
    return Serving(open_listener(options, address, None, transport))


class _Shelf:
    """The recorded connections, and which of them is served next. Streams share it."""

    def __init__(self, path: Path, limits: Limits, lenient: bool):
        self.path = path
        self.limits = limits
        self.lenient = lenient
        self._mutex = threading.Lock()
        self._firsts: dict[int, bytes] = {}
        scan = Scan(path, limits)
        for entry in scan:
            if entry.is_request and entry.connection.number not in self._firsts:
                scan.budget.hold(len(entry.message))
                self._firsts[entry.connection.number] = entry.message
        if not self._firsts:
            raise RecordingError(f"the recording {path} has no requests that could be replayed")
        self._order = list(self._firsts)

    def take(self, request: bytes) -> int | None:
        """Returns the recorded connection for a client's first request; None if there is none."""
        with self._mutex:
            for number in self._order:
                if _is_same(self._firsts[number], request):
                    break
            else:
                number = self._order[0]
                if not (self.lenient and _kind(self._firsts[number]) == _kind(request) != ""):
                    return None
            self._order.remove(number)
            self._order.append(number)
            return number

    def first_requests(self) -> str:
        """Describes the first requests of the connections, the same ones once."""
        return " or ".join(dict.fromkeys(_describe(first) for first in self._firsts.values()))


class _ReplayedStream:
    """The server's end of a stream. It reads the recording as far as requests have come."""

    may_wait = False

    def __init__(self, shelf: _Shelf, peer: Peer):
        self._shelf = shelf
        self._number: int | None = None
        self._exchanges: Iterator[tuple[bytes, bytes | None]] = iter(())
        self._next: tuple[bytes, bytes | None] | None = None
        self._answered = 0
        # The answer to the last step of the sequence that may be running.
        self._latest = b""
        self._deviations = 0

    def answer(self, message: bytes) -> bytes:
        """See `ServerStream.answer`."""
        if self._number is None:
            self._number = self._shelf.take(message)
            if self._number is None:
                return _error(
                    code_pb2.FAILED_PRECONDITION,
                    f"no connection of the recording {self._shelf.path.name} begins with "
                    f"{_describe(message)}; expected {self._shelf.first_requests()}",
                )
            self._exchanges = _exchanges(self._shelf, self._number)
            self._next = next(self._exchanges, None)
        place = f"request {self._answered + 1} of connection {self._number} of the recording "
        place += self._shelf.path.name
        if self._next is None:
            return _error(
                code_pb2.OUT_OF_RANGE,
                f"{place} is {_describe(message)}, but there were {self._answered} requests only",
            )
        request, answer = self._next
        kind = _kind(request)
        if not _is_same(request, message) and not self._differs_in_ignored_actions(
            request, message
        ):
            difference = f"{place} is {_describe(message)}; expected {_describe(request)}"
            if not self._shelf.lenient or not kind or _kind(message) != kind:
                return _error(code_pb2.FAILED_PRECONDITION, difference)
            if not self._deviations:
                _log.warning("the first deviation: %s", difference)
            self._deviations += 1
        if answer is None:
            return _error(
                code_pb2.UNAVAILABLE, f"{place} ({_describe(request)}) has no recorded answer"
            )
        if kind in _WITH_SEQUENCES:
            self._latest = answer if kind == "step" else b""
        self._answered += 1
        self._next = next(self._exchanges, None)
        return answer

    def _differs_in_ignored_actions(self, recorded: bytes, request: bytes) -> bool:
        """Whether both begin a sequence, and are the same but for their actions."""
        try:
            steps = [_parsed(recorded), _parsed(request)]
            if any(each.WhichOneof("payload") != "step" for each in steps):
                return False
            response = bounded_parsing.parse(
                EnvironmentResponse, self._latest, Budget(self._shelf.limits), "the answer"
            )
        except DECODE_ERRORS:
            return False
        if response.step.state == State.RUNNING.number:
            return False
        for each in steps:
            each.step.actions.clear()
        return bool(steps[0] == steps[1])

    def abandon(self) -> None:
        """See `ServerStream.abandon`."""

    def close(self) -> None:
        """See `ServerStream.close`."""
        if self._deviations:
            _log.warning(
                "%d of %d requests of connection %s deviated from the recording %s",
                self._deviations, self._answered, self._number, self._shelf.path.name,
            )  # fmt: skip
            self._deviations = 0
        self._exchanges = iter(())


def _exchanges(shelf: _Shelf, number: int) -> Iterator[tuple[bytes, bytes | None]]:
    """Yields each request of a connection with its answer; those without one at the end."""
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


def _is_same(recorded: bytes, request: bytes) -> bool:
    return recorded == request or _canonical(recorded) == _canonical(request)


def _canonical(request: bytes) -> bytes:
    """Returns the message in the one order that it has in every process."""
    try:
        parsed = _parsed(request)
        canonical: bytes = parsed.SerializeToString(deterministic=True)
    except DECODE_ERRORS:
        return bytes(request)
    return canonical


def _parsed(request: bytes) -> Any:
    """Returns a request within the default limits; SpecError, a ValueError, beyond them."""
    return bounded_parsing.parse(EnvironmentRequest, bytes(request), Budget(), "the request")


def _kind(request: bytes) -> str:
    """Returns the name of a request in the protocol; empty if it cannot be read."""
    try:
        return _parsed(request).WhichOneof("payload") or ""
    except DECODE_ERRORS:
        return ""


def _describe(request: bytes) -> str:
    """Returns a request in one line."""
    if len(request) > bounded_parsing.SMALL_BYTES:
        return f"a request of {len(request)} bytes"
    try:
        parsed = _parsed(request)
    except DECODE_ERRORS:
        return f"{len(request)} bytes that are no EnvironmentRequest"
    text = text_format.MessageToString(parsed, as_one_line=True) or f"{len(request)} unknown bytes"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(request)} bytes)"


def _error(code: int, text: str) -> bytes:
    response = EnvironmentResponse()
    response.error.code = code
    response.error.message = text
    message: bytes = response.SerializeToString()
    return message
