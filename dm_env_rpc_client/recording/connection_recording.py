"""The recording of one connection, and the queue and the thread that write it to the file.

The thread that sends or receives a message puts it into the queue with its time, which takes about
a microsecond. The writing thread empties the queue every 10 ms, and hands a chunk to the operating
system after 100 ms, or when the chunk is full. Nothing is dropped: if the disk does not keep up and
64 MiB wait, sending and receiving wait, too, and fail if the disk takes nothing for a minute. If
writing fails, for instance because the disk is full, the recorded connections fail with a
RecordingError, since a recording with a hole would look complete.
"""

from __future__ import annotations

import functools
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

from dm_env_rpc_client.errors import RecordingError
from dm_env_rpc_client.recording.container import ANSWERS, REQUESTS, Container
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.transports.streams import Buffer

_log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.1
"""What was sent or received this long ago is with the operating system."""

MAX_WAITING_BYTES = 64 << 20
"""What may wait to be written; beyond it, sending and receiving wait."""

_TAKE_SECONDS = 0.01
"""How often the thread takes what has come."""

_MOST_TAKEN = 1000
"""How many messages the thread takes at once."""

_MESSAGE_BYTES = 200
"""What a message in the queue counts beside its contents."""

_SETTLE_SECONDS = 30.0
"""How long closing waits for the disk."""

_STALLED_SECONDS = 60.0
"""How long sending and receiving wait for a disk that takes nothing, a network's for instance."""

_Message: TypeAlias = "tuple[ConnectionRecording, str, int, int, bytes]"
"""A message: its recording, direction, number, nanoseconds and bytes. A plain tuple: one with names
takes as long as all the rest."""

_Item: TypeAlias = "_Message | Callable[[], None] | None"
"""A message, something else that the thread does in its turn, or the end."""


class ConnectionRecording:
    """The recording of one connection. One thread at a time records requests, one answers.

    Args:
      recorder: is kept alive until the recording ends.
      writer: of the file.
      number: of the connection, from 1.
      metadata: what the recording says about the connection.

    Attributes:
      number: as the argument.
      metadata: as the argument.
      channels: the ids of its channels, for the thread that writes.
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
        """Records a request that is about to be sent. Errors are raised by `answer`.

        Args:
          message: its bytes.
          may_block: whether to wait if the disk does not keep up; otherwise see `must_wait`.
        """
        self._requests += 1
        now = self._writer.epoch + time.monotonic_ns()
        self._writer.put((self, REQUESTS, self._requests, now, message), may_block)

    def answer(self, message: Buffer, may_block: bool = True) -> None:
        """Records a received answer.

        Args:
          message: its bytes, of which it keeps a copy.
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
                f"the recording {self._writer.path} cannot be written, so that the connection to "
                f"{self.metadata['address']} ends: {failure}"
            ) from failure

    def must_wait(self, since: float) -> bool:
        """Whether as much waits to be written as may wait; see `FileWriter.must_wait`."""
        return self._writer.must_wait(since)

    def end(self) -> None:
        """Ends the recording of the connection; a second call does nothing.

        The garbage collector may call it anywhere, so it takes no lock.
        """
        if self._recorder is not None:
            self._recorder = None
            self._writer.queue.put(functools.partial(self._writer.end, self.number))

    def abandon(self) -> None:
        """Forgets the recording in a forked child: it is the parent's."""
        self._recorder = None


class FileWriter:
    """The queue, and the thread that empties it. It does not refer to the recorder.

    Args:
      container: the file.

    Attributes:
      path: of the file.
      failure: the first error of writing; None while there is none.
      leaves_unused: whether a file without connections is left at the end, and not removed.
      queue: what is to be written.
      epoch: the time at which `time.monotonic_ns` was 0.
    """

    def __init__(self, container: Container):
        self.path = container.path
        self.failure: BaseException | None = None
        self._has_finished = False
        self.leaves_unused = True
        self._is_used = False
        # `put` of a SimpleQueue may be called by the garbage collector inside another `put`.
        self.queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._container = container
        self._pid = os.getpid()
        self._mutex = make_lock()
        self._waiting_bytes = 0
        # Times do not go back, and differences are right, if the clock is set.
        self.epoch = time.time_ns() - time.monotonic_ns()
        self._progressed = time.monotonic()
        self._open: set[int] = set()
        self._unflushed_since: float | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"dm_env_rpc recorder of {container.path}", daemon=True
        )
        self._thread.start()

    def takes_more(self) -> bool:
        """Whether another connection to the same path is recorded here, too.

        Otherwise the file is complete, has failed, or was renamed, removed or replaced.
        """
        is_open = self.failure is None and not self._has_finished
        return is_open and self._container.output.is_in_place()

    def check(self) -> None:
        """Raises RecordingError if the finished file is another one by now."""
        try:
            self._container.output.check()
        except OSError as error:
            raise RecordingError(f"cannot record to {self.path} any more: {error}") from error

    def must_wait(self, since: float) -> bool:
        """Whether as much waits as may wait. It gives up a disk that takes nothing for a minute.

        Args:
          since: when the caller began to wait, by `time.monotonic`.
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
        """Puts a message into the queue; with `may_block` it waits until there is room."""
        self.queue.put(message)
        with self._mutex:
            self._waiting_bytes += len(message[-1]) + _MESSAGE_BYTES
        if self._waiting_bytes > MAX_WAITING_BYTES and may_block:
            since = time.monotonic()
            while self.must_wait(since):
                time.sleep(_TAKE_SECONDS)

    def settle(self) -> None:
        """Returns when the file has what was put into the queue; an error is logged."""
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
        """Completes the file and ends the thread; what fails is logged."""
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
                    # Not by `_do`: this is most of what the thread does.
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
                    # What connections that are still open send would be missing.
                    self.failure = self.failure or ValueError("the recorder was closed before it")
                    return
                else:
                    item()
            with self._mutex:
                self._waiting_bytes -= taken_bytes
            # They refer to connections, which the thread must not keep alive while it waits.
            items.clear()
            item = None
            since = self._unflushed_since
            if since is not None and time.monotonic() - since >= FLUSH_SECONDS:
                self._do(self._flush)

    def begin(self, number: int) -> None:
        """A connection begins; for the thread that writes, as `end`."""
        self._open.add(number)
        self._is_used = True
        self._has_finished = False

    def end(self, number: int) -> None:
        """A connection has ended; the file is completed if it was the last one."""
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
        """Does something with the file, unless something has failed before."""
        if self.failure is None:
            try:
                action()
            except BaseException as error:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Gives the file up; it is readable up to its last whole chunk."""
        self._unflushed_since = None
        self._container.output.close()
        self._note(error)

    def _note(self, error: BaseException) -> None:
        self.failure = error
        _log.error("the recording %s cannot be written: %s", self.path, error)
