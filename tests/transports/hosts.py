"""A listener whose streams do what a test says."""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from dm_env_rpc_client.transports.http2.server.listener import Http2Listener
from dm_env_rpc_client.transports.net.sockets import server_tls_context
from dm_env_rpc_client.transports.server_streams import (
    ListenerOptions,
    OpenStream,
    Peer,
    ServerStream,
    StreamStatusError,
)
from tests.support.scripted import settles
from tests.transports.raw_client import RawClient, request, requests

WAIT_SECONDS = 10.0


def listener(
    open_stream: OpenStream,
    address: str = "localhost:0",
    tls: ssl.SSLContext | None = None,
    max_streams: int = 10,
    **options: Any,
) -> Http2Listener:
    served = ListenerOptions(open_stream, max_streams, **options)
    return Http2Listener(served, address, server_tls_context(tls, address))


class Scripted(ServerStream):
    """Answers `name:rest` with what the function of that name returns for the rest."""

    may_wait = False

    def __init__(self, host: Host):
        self._host = host
        self.events: list[str] = []
        self._inside = threading.Lock()

    def answer(self, message: bytes) -> bytes:
        assert self._inside.acquire(blocking=False), "two threads answer one stream"
        try:
            assert "close" not in self.events
            name, _, rest = message.partition(b":")
            return self._host.scripts[name.decode()](rest)
        finally:
            self._inside.release()

    def abandon(self) -> None:
        assert "close" not in self.events
        self.events.append("abandon")
        self._host.on_abandon()

    def close(self) -> None:
        assert self._inside.acquire(blocking=False), "closed while it answers"
        self.events.append("close")
        self._host.on_close()
        self._inside.release()


def _sleep(rest: bytes) -> bytes:
    """Answers `milliseconds,text` with the text, after that time."""
    milliseconds, _, text = rest.partition(b",")
    time.sleep(int(milliseconds) / 1_000)  # It takes time to answer.
    return text


class Host:
    """A listener, and what its streams do."""

    def __init__(self, tls: ssl.SSLContext | None = None, **options: Any):
        self.error: BaseException = StreamStatusError("ABORTED", "over")
        self.scripts: dict[str, Callable[[bytes], bytes]] = {
            "echo": lambda rest: rest,
            "fail": self._fail,
            "large": lambda size: bytes(int(size)),
            "sleep": _sleep,
        }
        self.on_open: Callable[[], None] = lambda: None
        self.on_abandon: Callable[[], None] = lambda: None
        self.on_close: Callable[[], None] = lambda: None
        self.opened: list[Scripted] = []
        self.listener = listener(self._open, "127.0.0.1:0", tls, **{"max_streams": 20, **options})
        self.address = self.listener.address

    def _open(self, peer: Peer) -> Scripted:
        self.on_open()
        self.opened.append(Scripted(self))
        return self.opened[-1]

    def _fail(self, rest: bytes) -> bytes:
        raise self.error

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *exception: object) -> None:
        self.listener.stop(0.0)
        assert self.listener.wait(WAIT_SECONDS)

    @contextlib.contextmanager
    def blocking(self) -> Iterator[threading.Event]:
        """Requests "block:" are answered when the event is set, at the end at the latest."""
        go_on = threading.Event()
        self.scripts["block"] = lambda rest: str(go_on.wait(WAIT_SECONDS)).encode()
        try:
            yield go_on
        finally:
            go_on.set()

    def all_closed_once(self) -> bool:
        return settles(lambda: all(one.events.count("close") == 1 for one in self.opened))


def is_served(host: Host, seconds: float = 1.0) -> bool:
    """Whether an honest client gets an answer in time."""
    with RawClient(host.address) as honest:
        honest.send(request(1) + requests(1, b"echo:honest"))
        return honest.read_until(lambda: honest.answers(1) == [b"honest"], seconds)
