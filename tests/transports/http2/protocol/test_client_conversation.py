"""The client's half against h2 as the server, which checks all that a client may do."""

from __future__ import annotations

import random
from typing import Any

import h2.events
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from dm_env_rpc_client import ConnectionLostError
from tests.transports import frames
from tests.transports.client_call import feed, framing, outbound, received
from tests.transports.frames import grpc_message
from tests.transports.http2.protocol.conversations import SETTINGS, SIZES, WINDOWS, Conversation


class ClientConversation(Conversation):
    @initialize(window=WINDOWS, frame_size=SIZES)
    def begin(self, window: int, frame_size: int) -> None:
        self.begin_h2(False, window, frame_size)
        self.client = framing()
        self.client_said: list[bytes] = []
        self.server_said: list[bytes] = []
        self.server_heard = bytearray()
        self.has_begun = self.client_ended = self.server_knows_end = False

    @rule(size=st.integers(0, 300) | st.integers(0, 150_000), seed=st.integers(0, 99))
    @precondition(lambda self: not self.client_ended and not self.is_over)
    def client_sends(self, size: int, seed: int) -> None:
        message = random.Random(seed).randbytes(size)
        self.client.send(message)
        self.client_said.append(message)

    @rule()
    def client_ends(self) -> None:
        self.client.end()
        self.client_ended = True

    @rule(share=st.floats(0, 1))
    def bytes_reach_the_server(self, share: float) -> None:
        waiting = outbound(self.client)
        count = round(len(waiting) * share)
        self.to_h2 += waiting[:count]
        self.client.sent(count)
        if not self.is_over:
            self.receive(self.to_h2, len(self.to_h2))

    def on_event(self, event: Any) -> None:
        super().on_event(event)
        if isinstance(event, h2.events.RequestReceived):
            self.has_begun = True
            assert [(str(k), str(v)) for k, v in event.headers] == frames.REQUEST
            self.h2.send_headers(1, list(frames.RESPONSE))
        elif isinstance(event, h2.events.DataReceived):
            self.server_heard += event.data
        elif isinstance(event, h2.events.StreamEnded):
            self.server_knows_end = True

    @rule(size=st.integers(0, 300) | st.integers(0, 150_000), pad=st.integers(0, 255) | st.none(),
          cuts=st.integers(1, 4), seed=st.integers(0, 99))  # fmt: skip
    @precondition(lambda self: self.has_begun and not self.is_over)
    def server_sends(self, size: int, pad: int | None, cuts: int, seed: int) -> None:
        self.server_said.append(random.Random(seed).randbytes(size))
        self.send_in_frames(1, self.server_said[-1], cuts, pad)

    @rule(count=st.integers(1, 500_000), stream=st.sampled_from([None, 1]))
    @precondition(lambda self: self.has_begun and not self.is_over)
    def server_opens_a_window(self, count: int, stream: int | None) -> None:
        self.h2.increment_flow_control_window(count, stream)
        self.pump()

    @rule(share=st.floats(0, 1))
    def bytes_reach_the_client(self, share: float) -> None:
        count = round(len(self.from_h2) * share)
        feed(self.client, bytes(self.from_h2[:count]))
        del self.from_h2[:count]

    @rule()
    @precondition(lambda self: self.has_begun and not self.is_over)
    def server_ends(self) -> None:
        self.h2.send_headers(1, [("grpc-status", "0")], end_stream=True)
        self.is_over = True
        self.pump()

    @invariant()
    def nothing_is_lost_or_made_up(self) -> None:
        assert received(self.client) == self.server_said[: len(self.client.messages)]
        said = b"".join(map(grpc_message, self.client_said))
        assert said.startswith(bytes(self.server_heard))
        assert not self.server_knows_end or bytes(self.server_heard) == said
        if not self.is_over:
            assert self.client.failure is None, self.client.failure

    def teardown(self) -> None:
        if not hasattr(self, "client"):
            return
        for _ in range(3):
            self.bytes_reach_the_server(1.0)
            if self.has_begun and not self.is_over:
                self.h2.increment_flow_control_window(100_000_000)
                self.h2.increment_flow_control_window(100_000_000, 1)
                self.pump()
            self.bytes_reach_the_client(1.0)
        self.nothing_is_lost_or_made_up()
        assert received(self.client) == self.server_said
        if self.is_over:
            assert isinstance(self.client.failure, ConnectionLostError)
        else:
            assert bytes(self.server_heard) == b"".join(map(grpc_message, self.client_said))
            assert self.server_knows_end == self.client_ended
            assert self.pings["asked"] == self.pings["answered"]


TestClientConversation = ClientConversation.TestCase
TestClientConversation.settings = SETTINGS
