"""Recorders: which connections go to which file, and when it is complete."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from pathlib import Path

from dm_env_rpc_client import arguments
from dm_env_rpc_client.errors import RecordingError
from dm_env_rpc_client.recording.connection_recording import ConnectionRecording, FileWriter
from dm_env_rpc_client.recording.container import COMPRESSIONS, MAX_CONNECTIONS, Container
from dm_env_rpc_client.recording.streams import AsyncRecordedStream, RecordedStream
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.transports.endpoint import Endpoint
from dm_env_rpc_client.transports.streams import AsyncStream, Stream
from dm_env_rpc_client.version import __version__

# The recorders by path that are not finished, so that connections that are opened one after the
# other, as those of many environments are, have one file.
_recorders: weakref.WeakValueDictionary[str, Recorder] = weakref.WeakValueDictionary()
_opening = make_lock()


def _begin_anew() -> None:
    """In a forked child: the recorders are the parent's, one of whose threads may hold the lock."""
    global _opening
    _opening = make_lock()
    _recorders.clear()


os.register_at_fork(after_in_child=_begin_anew)


class Recorder:
    """Records connections to one file, from any threads.

    `make`, `connect` and the like take one, or a path, as `record`. With a path the file is
    complete when the last connection that records to it is closed. A Recorder that you make
    yourself may be shared by connections of any life; close it at the end, or use `with`. If all
    are closed and the file is renamed, replaced or removed, further connections fail: a file that
    may be another one is not written to.

    Args:
      path: the file, which must not exist.
      compression: of the contents: "zstd", "lz4" or "none".

    Attributes:
      path: the file.

    Raises:
      RecordingError: there is a file already, or it cannot be written.
      SpecError: there is no such compression, or `path` is no path.
    """

    def __init__(self, path: str | os.PathLike[str], *, compression: str = "zstd"):
        arguments.path("path", path)
        arguments.one_of("compression", compression, tuple(COMPRESSIONS))
        self.path = Path(path)
        self._writer = FileWriter(Container(self.path, compression))
        self._pid = os.getpid()
        self._connections = 0
        # Runs when the recorder is garbage-collected, and at the exit of the interpreter, after
        # those of the connections, which are younger.
        self._finalizer = weakref.finalize(self, self._writer.stop)

    def connection(self, address: str, settings: Mapping[str, str]) -> ConnectionRecording:
        """Begins to record a connection.

        Args:
          address: of its server.
          settings: what the recording says about the connection. They must not be secret.

        Returns:
          What records its requests and answers.

        Raises:
          RecordingError: the recorder is closed, another process made it, its file was complete
            and is another one now, or has as many connections as it can.
        """
        if os.getpid() != self._pid:
            raise RecordingError(
                f"the recorder of {self.path} belongs to process {self._pid}, which forked this "
                "one; record to a file of its own in each process"
            )
        if not self._finalizer.alive:
            raise RecordingError(f"the recorder of {self.path} is closed")
        self._writer.check()
        with _opening:
            if self._connections >= MAX_CONNECTIONS:
                raise RecordingError(
                    f"the recording {self.path} has {self._connections} connections, as many as a "
                    "file can have; record further ones to another file"
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
        """Returns a stream that records what passes `stream`; see `transports.endpoint.Tap`."""
        return RecordedStream(stream, self._recording_of(endpoint))

    def recorded_async(self, stream: AsyncStream, endpoint: Endpoint) -> AsyncStream:
        """Returns a stream to `endpoint` that records what passes `stream`, for an event loop."""
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
        """Returns when the file has all that was recorded so far; what fails is logged."""
        if os.getpid() == self._pid:
            self._writer.settle()

    def close(self) -> None:
        """Completes the file; a second call does nothing. What fails is logged.

        Connections that still record to it fail, since their recording would have a hole.
        """
        self._finalizer()

    def discard(self) -> None:
        """Closes it, and removes the file if no connection was recorded."""
        self._writer.leaves_unused = False
        self.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def recorder_of(record: str | os.PathLike[str] | Recorder) -> Recorder:
    """Returns the recorder for the argument `record` of `connect` and `make`.

    Connections to the same path share a recorder while one of them is open, and the file is there.

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
            # A connection that cannot be opened leaves no file in the way of the next attempt.
            found._writer.leaves_unused = False
        return found
