"""Both ends of gym-socket-api without this package's code: bytes over sockets."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator

from dm_env_rpc_client.transports.net.addresses import parse_host_port
from tests.support.scripted import listening

SECONDS = 60.0
"""No wait in a test takes longer: one of 1.5 s takes 15 on a busy machine (`patience`)."""

OK = b"\x00\x00\x00\x00"
RESET = b"\x00"


def sized(data: bytes) -> bytes:
    """A field: the length, and the bytes."""
    return len(data).to_bytes(4, "little") + data


class Peer:
    """One end of a connection."""

    def __init__(self, connected: socket.socket):
        self._socket = connected
        self._socket.settimeout(SECONDS)

    @classmethod
    def connect(cls, address: str, handshake: bytes = b"") -> Peer:
        peer = cls(socket.create_connection(parse_host_port(address), SECONDS))
        peer.send(handshake)
        return peer

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self, count: int) -> bytes:
        """Returns the next bytes, fewer where the connection ends."""
        data = b""
        while len(data) < count:
            piece = self._socket.recv(count - len(data))
            if not piece:
                break
            data += piece
        return data

    def expect(self, data: bytes) -> None:
        assert self.receive(len(data)) == data

    def ask(self, sent: bytes, expected: bytes) -> None:
        self.send(sent)
        self.expect(expected)

    def is_cut_off(self) -> bool:
        """Waits for the other end to close, and says whether it did before it said more."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionError:
            return True

    def drain(self) -> None:
        """Reads until the other end closes."""
        with contextlib.suppress(OSError):
            while self._socket.recv(1 << 16):
                pass

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextlib.contextmanager
def scripted_peer(script: Callable[[Peer], None]) -> Iterator[str]:
    """A server that runs a script on each connection; what the script raises, `with` raises."""
    errors: list[Exception] = []

    def answer(connected: socket.socket) -> None:
        with Peer(connected) as peer:
            try:
                script(peer)
                peer.drain()
            except Exception as error:
                errors.append(error)

    with listening(answer) as address:
        yield address
    if errors:
        raise errors[0]
