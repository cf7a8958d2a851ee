"""Messages and descriptors between processes."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dm_env_rpc_client.system.message_pipe import MessagePipe

Pair = tuple[MessagePipe, MessagePipe]


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = MessagePipe.pair()
    with contextlib.closing(one), contextlib.closing(other):
        yield one, other


@pytest.mark.parametrize("parts", [(), (b"",), (b"one",), (b"a", b"", b"b"), (b"x" * 5_000_000,)])
def test_messages_arrive_whole_and_in_order(pair: Pair, parts: tuple[bytes, ...]) -> None:
    one, other = pair

    def send() -> None:
        one.send(*parts)
        one.send(b"last")

    sender = threading.Thread(target=send)
    sender.start()
    message, descriptor = other.receive()
    assert (bytes(message), descriptor) == (b"".join(parts), None)
    assert other.receive().message == b"last"
    sender.join()


def test_a_message_that_is_too_large_is_not_followed_by_its_rest(pair: Pair) -> None:
    one, other = pair
    one._socket.sendall(struct.pack("<Q", (1 << 64) - 1))
    one.send(b"next")
    with pytest.raises(OverflowError):
        other.receive()
    with pytest.raises((EOFError, OSError)):
        other.receive()


def test_a_message_that_was_sent_in_part_is_not_followed_by_the_next(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(socket.socket):
        def sendmsg(self, buffers: Any, *_: Any) -> int:
            return self.send(b"".join(buffers)[:10])

        def sendall(self, *_: Any) -> None:
            raise KeyboardInterrupt

    one, other = pair
    monkeypatch.setattr(one, "_socket", Interrupted(fileno=os.dup(one.fileno())))
    with contextlib.closing(one._socket):
        with pytest.raises(KeyboardInterrupt):
            one.send(b"more than ten bytes")
        with pytest.raises(OSError, match="pipe"):
            one.send(b"next")
    with pytest.raises(EOFError):
        other.receive()
