"""Messages and descriptors between processes."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dm_env_rpc_client.system.message_pipe import MessagePipe
from tests.support.scripted import descriptor_count

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


def test_descriptors_come_with_their_message(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    before = descriptor_count()
    one, other = MessagePipe.pair()
    with path.open() as file:
        one.send(b"before")
        one.send(b"with it", descriptor=file.fileno())
        one.send(b"after")
    assert other.receive().descriptor is None
    message, descriptor = other.receive()
    assert message == b"with it"
    last = other.receive()
    assert last.message == b"after"
    assert last.descriptor is None
    assert descriptor is not None
    assert os.read(descriptor, 10) == b"text"
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)
    assert not other.wait(0.0)
    one.close()
    assert other.wait(20)
    other.close()
    assert descriptor_count() == before


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
