"""Calls that probe whether the server behind a silent stream over grpcio is alive.

grpcio's own PINGs are unsuitable: their timeout is fixed for a channel, and after two of them in a
request without data, grpcio sends one per minute, because gRPC servers close a connection on which
more of them arrive. A gRPC server answers a call of a method that it does not have with
UNIMPLEMENTED, without a thread of its own. Any answer is a sign of life.
"""

from __future__ import annotations

from typing import Any

import grpc

from dm_env_rpc_client.transports.net.keepalive import (
    PROBE_SECONDS,
    Keepalive,
    KeepaliveSeconds,
    Verdict,
    opening_seconds,
)
from dm_env_rpc_client.transports.net.status import silent

_METHOD = "/dm_env_rpc.v1.Environment/Probe"
"""A method that no server has. One of the health service would need a thread of the server, all of
which may be busy with streams."""

_UNANSWERED = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
"""The codes with which grpcio itself ends a call. If it ends one with UNAVAILABLE because the
connection is lost, the stream ends, too; a server that refuses further calls is alive."""


class Probes:
    """The probes of one stream.

    Args:
      channel: the channel of the stream; None for no probes.
      address: the server's name in error messages.

    Attributes:
      keepalive: see `Stream.keep_alive`.
      received: the number of messages and answers to probes that were received.
      sent: the number of messages that were sent.
    """

    def __init__(self, channel: Any, address: str):
        self.keepalive: KeepaliveSeconds = opening_seconds
        self.received = self.sent = 0
        self._address = address
        self._call = None if channel is None else channel.unary_unary(_METHOD)
        self._judge = Keepalive()

    def must_probe(self) -> bool:
        """Whether the caller must send a probe unless it is still waiting for the previous one.

        Raises:
          ConnectionLostError: the server has not answered a probe in time.
        """
        if self._call is None:
            return False
        verdict = self._judge.judge(self.received, self.sent, self.keepalive)
        if verdict is Verdict.GIVE_UP:
            raise silent(self._address, self.keepalive())
        # Again and again: the bytes of probes show the kernel that the machine is reachable.
        return self._judge.is_awaiting

    def probe(self) -> None:
        """Send a probe, and wait for the answer up to `PROBE_SECONDS`."""
        assert self._call is not None
        try:
            self._call(b"", timeout=PROBE_SECONDS)
        except grpc.RpcError as error:
            self.ended(error)
        except ValueError:
            pass  # The channel is closed.

    async def probe_async(self) -> None:
        """Send a probe on a channel of grpc.aio, as `probe` does."""
        assert self._call is not None
        try:
            await self._call(b"", timeout=PROBE_SECONDS)
        except grpc.RpcError as error:
            self.ended(error)

    def ended(self, error: Any) -> None:
        """Count the end of a probe as a sign of life if the server has sent it."""
        if error.code() not in _UNANSWERED:
            self.received += 1
