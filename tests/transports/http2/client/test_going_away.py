"""A server that ends connections after some streams, as proxies do: GOAWAY (RFC 9113, section 6.8).

Streams after the last that it names were not processed, so they are opened again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from dm_env_rpc_client import (
    ConnectionClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    connect_async,
)
from dm_env_rpc_client.transports.http2.protocol import frames
from tests.support.scripted import descriptor_count, extension, settles_async
from tests.support.stopwatch import time_limit
from tests.transports.frames import RESPONSE, headers
from tests.transports.raw_server import (
    Script,
    ask,
    both_ways,
    echoed,
    next_frame,
    raw_server,
    read_exactly,
    until_closed,
)


def leaving_at_first(
    connections: int, code: int = frames.NO_ERROR, has_begun: bool = False
) -> Script:
    """The script of a server that says of its first connections that it processed no stream.

    Args:
      connections: how many.
      code: of its GOAWAY.
      has_begun: whether it has begun to answer all the same.
    """
    left = [connections]

    def script(connection: socket.socket) -> None:
        assert read_exactly(connection, len(frames.PREFACE)) == frames.PREFACE
        connection.sendall(frames.settings_frame({}))
        while next_frame(connection).kind != frames.DATA:
            pass
        if left[0]:
            left[0] -= 1
            connection.sendall(headers(*RESPONSE) * has_begun + frames.goaway(0, code))
        else:
            connection.sendall(headers(*RESPONSE) + echoed(5))
        until_closed(connection)

    return script


@both_ways
@pytest.mark.parametrize(
    ("script", "lost"),
    [
        (lambda: leaving_at_first(1), ""),
        (lambda: leaving_at_first(3), ""),
        (lambda: leaving_at_first(4), "GOAWAY with NO_ERROR"),
        (lambda: leaving_at_first(1, frames.ENHANCE_YOUR_CALM), "ENHANCE_YOUR_CALM"),
        # A request must not be processed twice.
        (lambda: leaving_at_first(1, has_begun=True), "GOAWAY with NO_ERROR"),
    ],
    ids=["once", "three times", "four times", "another code", "an answer has begun"],
)
def test_the_only_stream_is_opened_again_if_it_was_not_processed(
    is_async: bool, script: Callable[[], Script], lost: str
) -> None:
    with raw_server(script()) as address, time_limit(5):
        if lost:
            with pytest.raises(ConnectionLostError, match=lost):
                ask(address, is_async, 5)
        else:
            assert ask(address, is_async, 5) == extension(5)


def only_once() -> Script:
    """The script of a server that says GOAWAY once, and nothing to those who come again."""
    leave = leaving_at_first(1)
    first = [True]

    def script(connection: socket.socket) -> None:
        if first:
            first.clear()
            leave(connection)
        until_closed(connection)

    return script


@pytest.mark.parametrize("act", ["deadline", "close"])
async def test_a_deadline_and_a_close_end_the_opening_of_another(act: str) -> None:
    with raw_server(only_once()) as address:
        connection = await connect_async(address)
        descriptors = descriptor_count()
        timeout = 0.3 if act == "deadline" else None
        sending = asyncio.create_task(connection.send(extension(5), timeout))
        pipeline = connection._pipeline
        assert await settles_async(lambda: pipeline._ending is not None)
        opening = pipeline._ending
        assert opening is not None
        if act == "close":
            await connection.close()
        with pytest.raises((DeadlineExceededError, ConnectionClosedError)):
            await sending
        await asyncio.wait([opening])
        assert opening.cancelled()
        await connection.close()
        assert await settles_async(lambda: descriptor_count() < descriptors)
