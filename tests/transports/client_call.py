"""One call of a client's half of a connection, as tests of single streams use it."""

from __future__ import annotations

from collections.abc import Sequence

from dm_env_rpc_client import DmEnvRpcClientError
from dm_env_rpc_client.protocol.step_codec import answer_memory
from dm_env_rpc_client.transports.http2.protocol.client_half import ClientHalf
from tests.transports import frames


class ClientCall:
    """A connection with its first stream."""

    def __init__(self, headers: Sequence[tuple[str, str]], address: str, limit: int):
        self.half = ClientHalf(address, limit, answer_memory)
        self.framing = self.half.framing
        self.sending = self.framing.sending
        self.call = self.half.open(headers)
        self.outbound = self.sending.outbound
        self.messages = self.call.messages
        self.buffers = self.framing.buffers
        self.received = self.framing.received
        self.sent = self.sending.sent
        self.send = self.call.send
        self.end = self.call.end
        self.cancel = self.half.shut_down

    @property
    def failure(self) -> DmEnvRpcClientError | None:
        return self.call.failure

    def has_unsent(self) -> bool:
        return self.sending.has_unsent


LIMIT = 1 << 20


def framing(limit: int = LIMIT) -> ClientCall:
    return ClientCall(frames.REQUEST, "localhost:1", limit)


def feed(client: ClientCall, contents: bytes) -> None:
    """Puts bytes where the framing wants them, as many at a time as there is room for."""
    while contents and client.failure is None:
        contents = frames.received(client.framing, contents)


def outbound(client: ClientCall) -> bytes:
    """What is to be sent."""
    return b"".join(bytes(part) for part in client.outbound)


def take_outbound(client: ClientCall) -> bytes:
    sent = outbound(client)
    client.sent(len(sent))
    assert not client.outbound
    return sent


def received(client: ClientCall) -> list[bytes]:
    return [bytes(message) for message in client.messages]
