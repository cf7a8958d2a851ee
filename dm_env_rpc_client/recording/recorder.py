"""Recorders queue the messages of connections, write them to a file, and complete the file.

A pipeline uses a recorded stream like any other stream. None of this code runs unless the argument
`record` is passed.

The thread that sends or receives a message adds the message and the time to a queue, which takes
about a microsecond. The writer thread drains the queue every 10 ms, and hands a chunk to the
operating system when the chunk is full, or after 100 ms. No message is dropped: if the disk falls
behind by 64 MiB, sending and receiving wait for the disk, and fail if the disk accepts nothing
for a minute. If writing fails, for instance because the disk is full, the recorded connections
fail with a RecordingError, since a recording with a gap would look complete.
"""

from __future__ import annotations

import functools
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from dm_env_rpc_client import arguments
from dm_env_rpc_client.errors import RecordingError
from dm_env_rpc_client.recording.mcap_file import (
    ANSWERS,
    COMPRESSIONS,
    MAX_CONNECTIONS,
    REQUESTS,
    Container,
)
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.transports.endpoint import Endpoint
from dm_env_rpc_client.transports.streams import AsyncStream, Buffer, Exchange, Stream
from dm_env_rpc_client.version import __version__

_log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.1
"""The maximum age, in seconds, of messages not yet handed to the operating system."""

MAX_WAITING_BYTES = 64 << 20
"""The maximum size, in bytes, of pending messages; above it, sending and receiving wait."""

_TAKE_SECONDS = 0.01
"""The interval, in seconds, at which the writer thread drains the queue."""

_MOST_TAKEN = 1000
"""The maximum number of messages that the writer thread takes at once."""

_MESSAGE_BYTES = 200
"""The overhead charged for each queued message, in bytes."""

_SETTLE_SECONDS = 30.0
"""The time limit, in seconds, for the disk to accept the remaining data when a recorder closes."""

_STALLED_SECONDS = 60.0
"""The time limit, in seconds, for a stalled disk or network file system to accept data."""


_Message: TypeAlias = "tuple[ConnectionRecording, str, int, int, bytes]"
"""A message as a plain tuple: its recording, direction, number, time in nanoseconds, and bytes. A
named tuple would take twice as long to queue."""

_Item: TypeAlias = "_Message | Callable[[], None] | None"
"""A queue item: a message, another operation for the writer thread, or None to end the thread."""

# Unfinished recorders by path, so that connections opened one after another, such as those of many
# environments, share a file.
_recorders: weakref.WeakValueDictionary[str, Recorder] = weakref.WeakValueDictionary()
_opening = make_lock()


def _begin_anew() -> None:
    """Reset the state in a forked child.

    The parent process owns the recorders, and one of its other threads may have held the lock.
    """
    global _opening
    _opening = make_lock()
    _recorders.clear()


os.register_at_fork(after_in_child=_begin_anew)


class Recorder:
    """A thread-safe recorder of connections to one file.

    `make`, `connect` and similar functions accept a recorder or a path as `record`. With a path,
    the file is complete when its last recorded connection is closed. To record connections opened
    at different times to one file, create a Recorder and pass it to each; close it at the end, or
    use `with`. If all connections are closed and the file is renamed, replaced or removed, further
    connections fail, because the path may then refer to another program's file.

    Args:
      path: the file, which must not exist.
      compression: the compression of the contents: "zstd", "lz4" or "none".

    Attributes:
      path: the file.

    Raises:
      RecordingError: the file already exists or cannot be written.
      SpecError: the compression is unknown, or `path` is not a path.
    """

    def __init__(self, path: str | os.PathLike[str], *, compression: str = "zstd"):
        arguments.path("path", path)
        arguments.one_of("compression", compression, tuple(COMPRESSIONS))
        self.path = Path(path)
        self._writer = FileWriter(Container(self.path, compression))
        self._pid = os.getpid()
        self._connections = 0
        # Finalizers run at interpreter exit from the newest to the oldest, so connections end
        # before their recorder.
        self._finalizer = weakref.finalize(self, self._writer.stop)

    def connection(self, address: str, settings: Mapping[str, str]) -> ConnectionRecording:
        """Begin recording a connection.

        Args:
          address: the address of the server.
          settings: the connection's settings to record, which must not contain secrets.

        Returns:
          The recording of the connection.

        Raises:
          RecordingError: the recorder is closed or belongs to another process, or its file was
            replaced after completion or already contains the maximum number of connections.
        """
        if os.getpid() != self._pid:
            raise RecordingError(
                f"the recorder of {self.path} belongs to process {self._pid}, which forked this "
                "one; record to a separate file in each process"
            )
        if not self._finalizer.alive:
            raise RecordingError(f"the recorder of {self.path} is closed")
        self._writer.check()
        with _opening:
            if self._connections >= MAX_CONNECTIONS:
                raise RecordingError(
                    f"the recording {self.path} has {self._connections} connections, the maximum "
                    "for a file; record further connections to another file"
                )
            self._connections += 1
            number = self._connections
        metadata = {
            "connection": str(number),
            "address": address,
            "version": __version__,
            **settings,
        }
        return ConnectionRecording(self, self._writer, number, metadata)

    def recorded(self, stream: Stream, endpoint: Endpoint) -> Stream:
        """Return a stream that records the messages of `stream`; see `transports.endpoint.Tap`."""
        return RecordedStream(stream, self._recording_of(endpoint))

    def recorded_async(self, stream: AsyncStream, endpoint: Endpoint) -> AsyncStream:
        """Return an AsyncStream that records the messages that `stream` carries to `endpoint`."""
        return AsyncRecordedStream(stream, self._recording_of(endpoint))

    def _recording_of(self, endpoint: Endpoint) -> ConnectionRecording:
        settings = {  # Not the metadata, which may be secret.
            "transport": endpoint.transport,
            "tls": str(endpoint.credentials is not None).lower(),
            "insecure": str(endpoint.insecure).lower(),
            "max_message_bytes": str(endpoint.max_message_bytes),
        }
        return self.connection(endpoint.address, settings)

    def settle(self) -> None:
        """Wait until the file contains everything recorded so far, and log any errors."""
        if os.getpid() == self._pid:
            self._writer.settle()

    def close(self) -> None:
        """Complete the file and log any errors; repeated calls have no effect.

        Connections still being recorded fail, since their recordings would have gaps.
        """
        self._finalizer()

    def discard(self) -> None:
        """Close the recorder, and remove the file if no connection was recorded."""
        self._writer.leaves_unused = False
        self.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def recorder_of(record: str | os.PathLike[str] | Recorder) -> Recorder:
    """Return the recorder for the argument `record` of `connect` and `make`.

    Connections that record to the same path share a recorder while it is open and the file exists.

    Raises:
      As `Recorder`.
    """
    if isinstance(record, Recorder):
        return record
    path = os.path.realpath(record)
    with _opening:
        found = _recorders.get(path)
        if found is None or not found._writer.takes_more():
            found = _recorders[path] = Recorder(record)
            # A file left by a failed connection attempt would make the next attempt fail.
            found._writer.leaves_unused = False
        return found


class ConnectionRecording:
    """The recording of one connection.

    One thread may record requests while another records answers.

    Args:
      recorder: the recorder, kept alive until the recording ends.
      writer: the writer of the file.
      number: the number of the connection, from 1.
      metadata: the connection's metadata in the recording.

    Attributes:
      number: the number of the connection, from 1.
      metadata: the connection's metadata in the recording.
      channels: the ids of the connection's channels, for the writer thread.
    """

    def __init__(
        self, recorder: object, writer: FileWriter, number: int, metadata: Mapping[str, str]
    ):
        self.number = number
        self.metadata = metadata
        self.channels: dict[str, int] = {}
        self._recorder: object | None = recorder
        self._writer = writer
        self._requests = self._answers = 0
        writer.queue.put(functools.partial(writer.begin, number))

    def request(self, message: bytes, may_block: bool = True) -> None:
        """Record a request before it is sent; any error is raised later, by `answer`.

        Args:
          message: the serialized request.
          may_block: whether to wait if the disk falls behind; if False, the caller must check
            `must_wait`.
        """
        self._requests += 1
        now = self._writer.epoch + time.monotonic_ns()
        self._writer.put((self, REQUESTS, self._requests, now, message), may_block)

    def answer(self, message: Buffer, may_block: bool = True) -> None:
        """Record a received answer.

        Args:
          message: the serialized answer, which is copied.
          may_block: as for `request`.

        Raises:
          RecordingError: the file cannot be written.
        """
        self._answers += 1
        now = self._writer.epoch + time.monotonic_ns()
        self._writer.put((self, ANSWERS, self._answers, now, bytes(message)), may_block)
        failure = self._writer.failure
        if failure is not None:
            raise RecordingError(
                f"cannot write the recording {self._writer.path}, so the connection to "
                f"{self.metadata['address']} is closed: {failure}"
            ) from failure

    def must_wait(self, since: float) -> bool:
        """Whether the queue is full; see `FileWriter.must_wait`."""
        return self._writer.must_wait(since)

    def end(self) -> None:
        """End the recording of the connection; repeated calls have no effect.

        This method takes no lock, because the garbage collector may call it at any point.
        """
        if self._recorder is not None:
            self._recorder = None
            self._writer.queue.put(functools.partial(self._writer.end, self.number))

    def abandon(self) -> None:
        """Abandon the recording in a forked child, since the parent owns it."""
        self._recorder = None


class FileWriter:
    """A queue of messages and a writer thread that does not keep the recorder alive.

    Args:
      container: the file.

    Attributes:
      path: the path of the file.
      failure: the first write error; None if there is none.
      leaves_unused: whether a file without connections is kept at the end.
      queue: messages to write.
      epoch: the time at which `time.monotonic_ns` was 0, in nanoseconds since the epoch.
    """

    def __init__(self, container: Container):
        self.path = container.path
        self.failure: BaseException | None = None
        self._has_finished = False
        self.leaves_unused = True
        self._is_used = False
        # `SimpleQueue.put` is reentrant: the garbage collector may call it inside another `put`.
        self.queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._container = container
        self._pid = os.getpid()
        self._mutex = make_lock()
        self._waiting_bytes = 0
        # Setting the system clock must not move times backwards or change their differences.
        self.epoch = time.time_ns() - time.monotonic_ns()
        self._progressed = time.monotonic()
        self._open: set[int] = set()
        self._unflushed_since: float | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"dm_env_rpc recorder of {container.path}", daemon=True
        )
        self._thread.start()

    def takes_more(self) -> bool:
        """Whether further connections can be recorded to this writer's file.

        If not, the file is complete, could not be written, or was renamed, removed or replaced.
        """
        is_open = self.failure is None and not self._has_finished
        return is_open and self._container.output.is_in_place()

    def check(self) -> None:
        """Raise RecordingError if the finished file was replaced."""
        try:
            self._container.output.check()
        except OSError as error:
            raise RecordingError(f"cannot record to {self.path}: {error}") from error

    def must_wait(self, since: float) -> bool:
        """Whether the queue is full. Writing fails if the disk accepts nothing for a minute.

        Args:
          since: the `time.monotonic` time at which the caller began to wait.
        """
        if (
            self._waiting_bytes <= MAX_WAITING_BYTES
            or self.failure is not None
            or not self._thread.is_alive()
        ):
            return False
        if time.monotonic() - max(since, self._progressed) > _STALLED_SECONDS:
            self._note(TimeoutError(f"nothing could be written for {_STALLED_SECONDS:g} s"))
            return False
        return True

    def put(self, message: _Message, may_block: bool) -> None:
        """Queue a message; if `may_block` is true, wait while the queue is full."""
        self.queue.put(message)
        with self._mutex:
            self._waiting_bytes += len(message[-1]) + _MESSAGE_BYTES
        if self._waiting_bytes > MAX_WAITING_BYTES and may_block:
            since = time.monotonic()
            while self.must_wait(since):
                time.sleep(_TAKE_SECONDS)

    def settle(self) -> None:
        """Wait until the file contains the queued messages, and log any errors."""
        # Not an Event: a signal at the wrong point of its `wait` raises RuntimeError.
        unsettled = make_lock()
        unsettled.acquire()
        self.queue.put(functools.partial(self._settle, unsettled))
        deadline = time.monotonic() + _SETTLE_SECONDS
        while (
            not unsettled.acquire(timeout=_TAKE_SECONDS)
            and self._thread.is_alive()
            and self.failure is None
        ):
            if time.monotonic() > deadline:
                _log.error("the recording %s was not written in time", self.path)
                break

    def stop(self) -> None:
        """Complete the file, end the thread, and log any errors."""
        self.queue.put(None)
        if os.getpid() == self._pid and self._thread is not threading.current_thread():
            self._thread.join(_TAKE_SECONDS if self.failure is not None else _SETTLE_SECONDS)
            if self._thread.is_alive() and self.failure is None:
                _log.error("the recording %s was not completed in time", self.path)

    def _run(self) -> None:
        take = self.queue.get_nowait
        while True:
            if self._unflushed_since is None:
                items = [self.queue.get()]
            else:
                time.sleep(_TAKE_SECONDS)
                items = []
            try:
                while True:
                    if len(items) >= _MOST_TAKEN:
                        break
                    items.append(take())
            except queue.Empty:
                pass
            taken_bytes = 0
            for item in items:
                if isinstance(item, tuple):
                    taken_bytes += len(item[-1]) + _MESSAGE_BYTES
                    # Bypasses `_do`, because messages are most of the thread's work.
                    if self.failure is None:
                        try:
                            self._add(*item)
                        except BaseException as error:
                            self._fail(error)
                    self._progressed = time.monotonic()
                elif item is None:
                    self._do(self._finish)
                    self._container.output.close()
                    if not (self.leaves_unused or self._is_used):
                        self._container.output.remove()
                    # The recordings of open connections would have gaps from now on.
                    self.failure = self.failure or ValueError("the recorder was closed before it")
                    return
                else:
                    item()
            with self._mutex:
                self._waiting_bytes -= taken_bytes
            # The items refer to connections, which a waiting thread must not keep alive.
            items.clear()
            item = None
            since = self._unflushed_since
            if since is not None and time.monotonic() - since >= FLUSH_SECONDS:
                self._do(self._flush)

    def begin(self, number: int) -> None:
        """Begin a connection. Only the writer thread may call this method."""
        self._open.add(number)
        self._is_used = True
        self._has_finished = False

    def end(self, number: int) -> None:
        """End a connection, and complete the file if no other connection is open."""
        self._open.discard(number)
        if not self._open:
            self._do(self._finish)

    def _settle(self, unsettled: threading.Lock) -> None:
        self._do(self._flush)
        unsettled.release()

    def _add(
        self,
        recording: ConnectionRecording,
        direction: str,
        sequence: int,
        nanoseconds: int,
        message: bytes,
    ) -> None:
        if not recording.channels:
            for each in (REQUESTS, ANSWERS):
                recording.channels[each] = self._container.add_channel(
                    recording.number, each, {**recording.metadata, "direction": each}
                )
        self._container.add(recording.channels[direction], sequence, nanoseconds, message)
        if self._unflushed_since is None:
            self._unflushed_since = time.monotonic()

    def _flush(self) -> None:
        if self._unflushed_since is not None:
            self._unflushed_since = None
            self._container.flush()

    def _finish(self) -> None:
        self._unflushed_since = None
        self._container.finish()
        self._has_finished = True

    def _do(self, action: Callable[[], None]) -> None:
        """Run an operation on the file, unless an earlier one has failed."""
        if self.failure is None:
            try:
                action()
            except BaseException as error:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Abandon the file, which remains readable up to its last complete chunk."""
        self._unflushed_since = None
        self._container.output.close()
        self._note(error)

    def _note(self, error: BaseException) -> None:
        self.failure = error
        _log.error("the recording %s cannot be written: %s", self.path, error)


class _Recorded:
    """The common base class of recorded streams; it implements closing.

    Args:
      stream: the underlying stream.
      recording: the recording.
    """

    def __init__(self, stream: Stream | AsyncStream, recording: ConnectionRecording):
        self.address = stream.address
        self._recording = recording
        self._abandon = stream.abandon
        self._abort = stream.abort
        self.keep_alive = stream.keep_alive

    def abandon(self) -> None:
        """Abandon the stream and the recording in a forked child."""
        self._recording.abandon()
        self._abandon()

    def abort(self) -> None:
        """End the stream and its recording immediately."""
        try:
            self._abort()
        finally:
            self._recording.end()


class RecordedStream(_Recorded):
    """A `Stream` that records the messages of an underlying stream.

    Args:
      stream: the underlying stream.
      recording: the recording.
    """

    def __init__(self, stream: Stream, recording: ConnectionRecording):
        super().__init__(stream, recording)
        self._stream = stream
        self.fileno = stream.fileno
        self.has_unread = stream.has_unread
        self.shared_socket = stream.shared_socket
        self.has_unsent = stream.has_unsent
        self.send_rest = stream.send_rest
        self.finish = stream.finish

    def write(self, *messages: bytes) -> bool:
        """Record messages and send them together."""
        for message in messages:
            self._recording.request(message)
        return self._stream.write(*messages)

    @property
    def exchange(self) -> Exchange | None:
        """The underlying stream's `exchange`, with recording, or None if the stream has none."""
        return None if self._stream.exchange is None else self._exchange

    def _exchange(
        self,
        message: bytes,
        begin: Callable[[Any], bool],
        pending: Any,
        writing: threading.Lock,
        is_due: bool,
    ) -> Buffer | None:
        exchange = self._stream.exchange
        if exchange is None:
            return None

        def begin_recorded(pending: Any) -> bool:
            has_begun = begin(pending)
            if has_begun:
                # This thread holds the socket, so the wait for the disk is left to the answer.
                self._recording.request(message, may_block=False)
            return has_begun

        answer = exchange(message, begin_recorded, pending, writing, is_due)
        if answer is not None:
            self._recording.answer(answer)
        return answer

    def read(self, timeout: float | None, until_sent: bool = False) -> Buffer | None:
        """Record and return the next message, or return None if no message arrives in time."""
        message = self._stream.read(timeout, until_sent)
        if message is not None:
            self._recording.answer(message)
        return message

    def close(self, timeout: float) -> None:
        """Close the stream and end its recording."""
        try:
            self._stream.close(timeout)
        finally:
            self._recording.end()


class AsyncRecordedStream(_Recorded):
    """An `AsyncStream` that records the messages of an underlying stream.

    While the disk is behind, the stream stops receiving, without blocking the event loop.

    Args:
      stream: the underlying stream.
      recording: the recording.
    """

    def __init__(self, stream: AsyncStream, recording: ConnectionRecording):
        super().__init__(stream, recording)
        self._stream = stream
        self._behind_since = 0.0
        self.fileno = stream.fileno
        self.receive = stream.receive
        self.has_unread = stream.has_unread
        self.opening_again = stream.opening_again
        self.finish = stream.finish
        self.closed = stream.closed

    def events(self) -> int:
        """Return the events for which to poll the descriptor, or 0 while the disk is behind."""
        return 0 if self._is_behind() else self._stream.events()

    def write(self, message: bytes, /) -> object:
        """Record a message and send it."""
        self._recording.request(message, may_block=False)
        return self._stream.write(message)

    def take(self) -> Buffer | None:
        """Record and return the next message; return None if none is ready or the disk lags."""
        message = None if self._is_behind() else self._stream.take()
        if message is not None:
            self._recording.answer(message, may_block=False)
        return message

    def look(self) -> None:
        """Check whether the server has gone silent, unless this end has stopped receiving."""
        if not self._is_behind():
            self._stream.look()

    def _is_behind(self) -> bool:
        since = self._behind_since or time.monotonic()
        is_behind = self._recording.must_wait(since)
        self._behind_since = since if is_behind else 0.0
        return is_behind
