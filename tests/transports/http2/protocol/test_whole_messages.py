"""Messages that are received alone: accepted whole, expected in place, or neither, but never lost.

Each case is held against what the general way makes of the same bytes.
"""

from __future__ import annotations

import itertools
import random

import pytest

from dm_env_rpc_client.transports.http2.protocol.server_half import (
    CONNECTION_WINDOW,
    STREAM_WINDOW,
)
from tests.transports import frames
from tests.transports.client_call import (
    LIMIT,
    ClientCall,
    feed,
    framing,
    received,
    take_outbound,
)
from tests.transports.frames import (
    PING,
    data,
    frame,
    greeting,
    grpc_message,
    taken_apart,
    window_update,
)
from tests.transports.raw_client import requests
from tests.transports.server_shell import OPEN, Server

SMALL = [0, 1, 100, 5_000]
LARGE = [65_536, 100_000, 300_000]


def take(client: ClientCall, contents: bytes) -> bytes:
    """Receives once, as a client that waits for an answer; returns what there was no room for."""
    own, assembler = client.framing, client.call.assembler
    if not own.is_between_frames:
        return frames.received(own, contents)
    is_expected = bool(assembler.expected)
    areas = own.expect(1, assembler) if is_expected else own.memory
    count = 0
    for area in areas:
        part = contents[count : count + len(area)]
        area[: len(part)] = part
        count += len(part)
    message = own.expected(count) if is_expected else own.whole(count, 1, assembler)
    if message is None:
        own.received(count)
    else:
        client.messages.append(memoryview(bytes(message)))
    return contents[count:]


def answers(chooser: random.Random) -> tuple[bytes, list[bytes]]:
    """Bytes of a server, and the messages in them."""
    sizes = [chooser.choice(SMALL), chooser.choice(LARGE)]
    sent, messages = [], []
    for _ in range(chooser.randint(1, 12)):
        size = chooser.choice(sizes if chooser.random() < 0.8 else SMALL + LARGE)
        message = chooser.randbytes(size)
        messages.append(message)
        content = grpc_message(message)
        form = chooser.randrange(8)
        if form == 0:
            sent.append(frame(PING, bytes(8)))
        if form == 1:
            cut = chooser.randint(0, len(content))
            sent.append(data(content[:cut]) + data(content[cut:]))
        elif form == 2:
            sent.append(frame(frames.DATA, b"\x03" + content + bytes(3), frames.PADDED, 1))
        else:
            sent.append(data(content))
        if form == 3:
            sent.append(window_update(0, 10) + window_update(1, 10))
    return b"".join(sent), messages


@pytest.mark.parametrize("seed", range(100))
def test_any_pieces_of_any_answers_are_the_same_messages(seed: int) -> None:
    chooser = random.Random(seed)
    sent, messages = answers(chooser)
    client = framing()
    feed(client, greeting())
    bounds = [client.framing.receptions]
    while sent:
        most = chooser.choice([1, 14, 15, 100, 70_000, *[len(sent)] * 3])
        piece, sent = sent[:most], sent[most:]
        while piece:
            piece = take(client, piece)
            bounds.append(client.framing.receptions)
    assert client.failure is None
    assert received(client) == messages
    # The keepalive sees that the server is alive by this number.
    assert all(earlier < later for earlier, later in itertools.pairwise(bounds))


def expecting() -> ClientCall:
    """A client that expects a large answer."""
    client = framing()
    feed(client, greeting() + data(grpc_message(bytes(LARGE[0]))))
    client.messages.clear()
    client.framing.expect(1, client.call.assembler)
    return client


def test_the_end_of_the_connection_instead_of_an_expected_answer() -> None:
    client = expecting()
    client.received(0)
    assert "closed the connection" in str(client.failure)


@pytest.mark.parametrize("size", [LIMIT + 1, LARGE[0] + 1, 1])
def test_an_answer_of_another_size_comes_instead(size: int) -> None:
    client = expecting()
    sent = data(grpc_message(b"y" * size))
    for area in client.framing.expect(1, client.call.assembler):
        part, sent = sent[: len(area)], sent[len(area) :]
        area[: len(part)] = part
    client.received(14 + size if size < LARGE[0] else 14 + LARGE[0] + min(size - LARGE[0], 262_130))
    feed(client, sent)
    if size > LIMIT:
        assert "message of" in str(client.failure)
    else:
        assert received(client) == [b"y" * size]
        # After a surprise nothing is expected for a while.
        count = 0
        while not client.call.assembler.expected:
            feed(client, data(grpc_message(bytes(LARGE[1]))))
            count += 1
        assert 16 <= count <= 17
        assert client.call.assembler.expected == LARGE[1]


def test_windows_are_opened_for_messages_that_were_accepted_whole() -> None:
    """To the byte: a client may send as much as the server has allowed, and not more."""
    server = Server(answers=False)
    server.feed(OPEN)
    server.take_outbound()
    own, assembler = server.framing, server.calls[1].assembler
    chooser = random.Random(5)
    windows = {0: CONNECTION_WINDOW, 1: STREAM_WINDOW}
    left = dict(windows)
    whole = 0
    for _ in range(3_000):
        size = chooser.choice([3, 3, 3, 3_000, 30_000])
        sent = requests(1, bytes(size))
        if chooser.random() < 0.1:
            sent += frame(PING, bytes(8))
        if own.is_between_frames:
            own.memory[0][: len(sent)] = sent
            if own.whole(len(sent), 1, assembler) is not None:
                whole += 1
            else:
                own.received(len(sent))
                server.happen()
        else:
            server.feed(sent)
        said = frames.taken_apart(server.take_outbound())
        for stream, window in windows.items():
            left[stream] -= size + 5
            left[stream] += sum(
                int.from_bytes(each.payload, "big")
                for each in said
                if each.kind == frames.WINDOW_UPDATE and each.stream == stream
            )
            assert window // 2 - 30_005 <= left[stream] <= window
    assert own.failure is None
    assert whole > 2_000


def test_a_message_is_cut_once_the_peer_accepts_only_smaller_frames() -> None:
    client = framing()
    feed(client, frames.settings(frame=100_000, window=1 << 20) + window_update(0, 1 << 20))
    take_outbound(client)
    for size, expected in ((100_000, [50_005]), (20_000, [20_000, 20_000, 10_005])):
        feed(client, frames.settings(frame=size))
        client.send(bytes(50_000))
        found = [each for each in taken_apart(take_outbound(client)) if each.kind == frames.DATA]
        assert [len(each.payload) for each in found] == expected


def test_what_waits_for_a_window_counts_as_submitted_once() -> None:
    client = framing()
    feed(client, frames.settings(window=100))
    sending = client.sending
    client.send(bytes(10))
    assert sending.submitted == 15
    client.send(bytes(200))
    assert sending.submitted == 15 + 205
    feed(client, window_update(1, 1_000) + window_update(0, 1_000))
    assert sending.submitted == 15 + 205
