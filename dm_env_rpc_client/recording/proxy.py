"""A recording proxy that works between any clients and any server.

Each client stream gets its own stream to the server, with the client's metadata. The metadata is
not recorded. Requests are forwarded one at a time, so a pipelining client waits a full round trip
for each request. While only one stream is open, the thread that receives its requests also
forwards them, which avoids switching threads.
"""

from __future__ import annotations

import dataclasses
import os
import threading

from dm_env_rpc_client.errors import DmEnvRpcClientError, RecordingError
from dm_env_rpc_client.protocol.pipeline import LOADING_KEEPALIVE_SECONDS
from dm_env_rpc_client.recording.recorder import Recorder
from dm_env_rpc_client.recording.replay import Serving
from dm_env_rpc_client.transports.endpoint import Endpoint, Transport
from dm_env_rpc_client.transports.net.credentials import Credentials
from dm_env_rpc_client.transports.net.keepalive import LOOK_SECONDS
from dm_env_rpc_client.transports.opening import open_stream
from dm_env_rpc_client.transports.server_streams import (
    Peer,
    ServerStream,
    StreamStatusError,
    check_may_listen,
)
from dm_env_rpc_client.transports.streams import Buffer, Stream

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
) -> Proxy:
    """Start a proxy that forwards and records clients' requests and a server's answers.

    Args:
      upstream: the address of the server, as for `connect`.
      path: the file to record to, which must not exist.
      address: the address for clients, in plaintext: `host:port` or `unix:path`; port 0 selects a
        free port.
      credentials: TLS credentials for the connections to the server; None for plaintext.
      token: the token to send to the server for clients that send none.
      insecure: allow plaintext with other machines, both for clients and for the server.
      transport: the transport for the streams to the server.
      compression: see `Recorder`.

    Returns:
      The running proxy. `.address` is the address for clients; `.stop()` or the end of a `with`
      block stops the proxy and completes the file; `.clients` and `.requests` count the traffic.

    Raises:
      RecordingError: the file already exists or cannot be written.
      SpecError: plaintext with another machine requires `insecure`, or as `connect`.
      OSError: the address is in use, or does not belong to this machine.
    """
    check_may_listen(address, None, insecure)
    endpoint = Endpoint(
        upstream,
        credentials=credentials,
        insecure=insecure,
        transport=transport,
        token=token,
    )

    recorder = Recorder(path, compression=compression)
    try:
        return Proxy(dataclasses.replace(endpoint, tap=recorder), address, recorder)
    except BaseException:
        recorder.discard()
        raise


class Proxy(Serving):
    """A running proxy, returned by `proxy`.

    Args:
      endpoint: the endpoint of the server, with the recorder.
      address: the address for clients, in plaintext.
      recorder: the recorder, which is closed when the proxy stops.
    """

    def __init__(self, endpoint: Endpoint, address: str, recorder: Recorder):
        self._traffic = traffic = _Traffic()
        super().__init__(
            lambda peer: _ForwardedStream(endpoint, peer, traffic), address, "auto", recorder.close
        )

    @property
    def clients(self) -> int:
        """The number of open client streams."""
        return len(self._traffic.streams)

    @property
    def requests(self) -> int:
        """The number of requests answered so far."""
        traffic = self._traffic
        with traffic.lock:
            return traffic.past_requests + sum(each.requests for each in traffic.streams)


@dataclasses.dataclass
class _Traffic:
    streams: set[_ForwardedStream] = dataclasses.field(default_factory=set)
    past_requests: int = 0
    """The number of requests answered on streams that have since closed."""

    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    """The lock for counting, opening and closing streams."""


def _read(stream: Stream) -> Buffer:
    # A stream looks whether the server is alive each time that it returns without an answer.
    while (answer := stream.read(LOOK_SECONDS)) is None:
        pass
    return answer


class _ForwardedStream(ServerStream):
    """The proxy's end of a client's stream, which has its own stream to the server.

    Args:
      endpoint: the endpoint of the server, with the recorder.
      peer: the client.
      traffic: the open streams of the proxy.
    """

    def __init__(self, endpoint: Endpoint, peer: Peer, traffic: _Traffic):
        sent = [pair for pair in peer.metadata if pair[0] not in _OF_THE_CALL]
        own = endpoint.metadata or ()
        self._endpoint = dataclasses.replace(endpoint, metadata=sent).with_metadata(own)
        self._stream: Stream | None = None
        self._is_abandoned = False
        self._traffic = traffic
        self.requests = 0
        with traffic.lock:
            traffic.streams.add(self)
        self.may_wait = len(traffic.streams) > 1

    def answer(self, message: bytes) -> bytes:
        self.may_wait = len(self._traffic.streams) > 1
        try:
            if self._stream is None:
                # Connecting may take long, so it waits for the first request.
                self._stream = open_stream(self._endpoint, _CONNECT_SECONDS)
                self._stream.keep_alive(lambda: LOADING_KEEPALIVE_SECONDS)
            if self._is_abandoned:
                self._stream.abort()
            self._stream.write(bytes(message))
            answer = _read(self._stream)
        except RecordingError as error:
            raise StreamStatusError("ABORTED", str(error)) from error
        except DmEnvRpcClientError as error:
            code = getattr(error, "code", None)
            code = code if isinstance(code, str) and code != "OK" else "UNAVAILABLE"
            raise StreamStatusError(code, f"the proxy says: {error}") from error
        self.requests += 1
        return bytes(answer)

    def abandon(self) -> None:
        self._is_abandoned = True
        if self._stream is not None:
            self._stream.abort()

    def close(self) -> None:
        with self._traffic.lock:
            self._traffic.streams.discard(self)
            self._traffic.past_requests += self.requests
        if self._stream is not None:
            self._stream.close(_CLOSE_SECONDS)
