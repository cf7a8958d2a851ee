"""A proxy between any clients and any server that records what passes.

Each stream of a client gets a stream to the server, with the client's metadata, which is not
recorded. Requests are forwarded one by one, so that a client that sends many before it reads an
answer waits for the server as often. While there is one stream only, the thread that has received
a request forwards it; a thread for each stream costs hand-overs.
"""

from __future__ import annotations

import os

from dm_env_rpc_client.errors import DmEnvRpcClientError, RecordingError
from dm_env_rpc_client.recording.recorder import Recorder, settings_of
from dm_env_rpc_client.recording.serving import MAX_STREAMS, Serving
from dm_env_rpc_client.recording.tape import Tape
from dm_env_rpc_client.transports.credentials import Credentials
from dm_env_rpc_client.transports.endpoint import Endpoint, Transport
from dm_env_rpc_client.transports.listeners import open_listener
from dm_env_rpc_client.transports.opening import open_stream
from dm_env_rpc_client.transports.server_streams import (
    ListenerOptions,
    Peer,
    StreamStatusError,
    check_may_listen,
)
from dm_env_rpc_client.transports.streams import MAX_MESSAGE_BYTES, Stream

__all__ = ["proxy"]

_CONNECT_SECONDS = 10.0
_CLOSE_SECONDS = 1.0
_OF_THE_CALL = {"user-agent", "te", "content-type", "content-length"}


def proxy(
    upstream: str,
    path: str | os.PathLike[str],
    address: str = "localhost:0",
    *,
    credentials: Credentials | None = None,
    token: str | None = None,
    insecure: bool = False,
    transport: Transport = "auto",
    compression: str = "zstd",
) -> Serving:
    """Forwards what clients send to a server, and its answers, and records both.

    Args:
      upstream: the address of the server, as for `connect`.
      path: the file to record to, which must not exist.
      address: where clients connect, in plaintext: `host:port` or `unix:path`; port 0 selects a
        free port.
      credentials: TLS credentials for the connections to the server; None for plaintext.
      token: a secret that the server requires, for clients that send none.
      insecure: allow plaintext with other machines, at both ends.
      transport: which transport carries the streams to the server.
      compression: see `Recorder`.

    Returns:
      The running proxy; `.address` is where it listens, `.stop()` or the end of a `with` block
      stops it and completes the file.

    Raises:
      RecordingError: the file exists, or cannot be written.
      SpecError: plaintext with another machine without `insecure`, or as `connect`.
      OSError: the address is taken, or does not belong to this machine.
    """
    check_may_listen(address, None, insecure)
    endpoint = Endpoint(upstream, credentials, insecure, None, transport, MAX_MESSAGE_BYTES, token)

    def open_forwarded(peer: Peer) -> _ForwardedStream:
        return _ForwardedStream(endpoint, recorder, peer, streams)

    streams: set[_ForwardedStream] = set()
    recorder = Recorder(path, compression=compression)
    try:
        options = ListenerOptions(open_forwarded, MAX_STREAMS)
        listener = open_listener(options, address, None, "auto")
    except BaseException:
        recorder.discard()
        raise
    return Serving(listener, recorder.close)


class _ForwardedStream:
    """The proxy's end of a client's stream, with a stream to the server.

    Args:
      endpoint: the server.
      recorder: of all streams.
      peer: the client.
      streams: those that are open.
    """

    def __init__(
        self, endpoint: Endpoint, recorder: Recorder, peer: Peer, streams: set[_ForwardedStream]
    ):
        sent = [pair for pair in peer.metadata if pair[0] not in _OF_THE_CALL]
        own = [pair for pair in endpoint.metadata or () if pair[0] not in dict(sent)]
        self._endpoint = Endpoint(
            endpoint.address,
            endpoint.credentials,
            endpoint.insecure,
            [*sent, *own],
            endpoint.transport,
            endpoint.max_message_bytes,
        )
        self._recorder = recorder
        self._stream: Stream | None = None
        self._tape: Tape | None = None
        self._is_abandoned = False
        self._streams = streams
        streams.add(self)
        self.may_wait = len(streams) > 1

    def answer(self, message: bytes) -> bytes:
        """See `ServerStream.answer`."""
        self.may_wait = len(self._streams) > 1
        try:
            if self._stream is None:
                # Not before there is a request: this may take long.
                stream = open_stream(self._endpoint, _CONNECT_SECONDS)
                self._stream = stream
                settings = settings_of(self._endpoint)
                self._tape = self._recorder.tape(self._endpoint.address, settings)
            assert self._tape is not None
            if self._is_abandoned:
                self._stream.abort()
            message = bytes(message)
            self._tape.request(message)
            self._stream.write(message)
            while True:
                answer = self._stream.read(None)
                if answer is not None:
                    break
            answer = bytes(answer)
            self._tape.answer(answer)
        except RecordingError as error:
            raise StreamStatusError("ABORTED", str(error)) from error
        except DmEnvRpcClientError as error:
            code = getattr(error, "code", None)
            code = code if isinstance(code, str) and code != "OK" else "UNAVAILABLE"
            raise StreamStatusError(code, f"the proxy says: {error}") from error
        return answer

    def abandon(self) -> None:
        """See `ServerStream.abandon`."""
        self._is_abandoned = True
        if self._stream is not None:
            self._stream.abort()

    def close(self) -> None:
        """See `ServerStream.close`."""
        self._streams.discard(self)
        if self._stream is not None:
            self._stream.close(_CLOSE_SECONDS)
        if self._tape is not None:
            self._tape.end()
