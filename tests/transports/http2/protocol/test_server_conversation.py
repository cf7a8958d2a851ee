"""The server's half against h2 as the client, which checks all that a server may do."""

from __future__ import annotations

import random
from typing import Any

import h2.events
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tests.transports.frames import REQUEST, grpc_message
from tests.transports.http2.protocol.conversations import SETTINGS, SIZES, WINDOWS, Conversation
from tests.transports.server_shell import Server


class ServerConversation(Conversation):
    @initialize(window=WINDOWS, frame_size=SIZES, table=st.sampled_from([0, 100, 4_096]))
    def begin(self, window: int, frame_size: int, table: int) -> None:
        self.begin_h2(True, window, frame_size, HEADER_TABLE_SIZE=table, ENABLE_PUSH=0)
        self.h2.decoder.max_allowed_table_size = table
        self.server = Server(max_streams=100)
        self.asked: dict[int, list[bytes]] = {}
        self.heard: dict[int, bytearray] = {}
        self.ended: set[int] = set()
        self.status: dict[int, str] = {}
        self.reset: set[int] = set()
        self.next_stream = 1

    def _live(self) -> list[int]:
        return [one for one in self.asked if one not in self.ended and one not in self.reset]

    @rule(more=st.sampled_from([0, 10, 3_000]))
    @precondition(lambda self: len(self._live()) < 8)
    def client_opens(self, more: int) -> None:
        number, self.next_stream = self.next_stream, self.next_stream + 2
        self.h2.send_headers(number, [*REQUEST, ("more", "x" * more)])
        self.asked[number], self.heard[number] = [], bytearray()
        self.pump()

    @rule(size=st.integers(0, 300) | st.integers(0, 60_000), pad=st.integers(0, 255) | st.none(),
          cuts=st.integers(1, 4), seed=st.integers(0, 99), end=st.booleans())  # fmt: skip
    @precondition(lambda self: self._live())
    def client_asks(self, size: int, pad: int | None, cuts: int, seed: int, end: bool) -> None:
        rng = random.Random(seed)
        number = rng.choice(self._live())
        room = self.h2.local_flow_control_window(number)
        if size + 5 + 260 * ((size + 5) // 100 + cuts) > room:
            return
        self.asked[number].append(rng.randbytes(size))
        self.send_in_frames(number, self.asked[number][-1], cuts, pad, end)
        if end:
            self.ended.add(number)

    @rule(seed=st.integers(0, 99))
    @precondition(lambda self: self._live())
    def client_resets(self, seed: int) -> None:
        number = random.Random(seed).choice(self._live())
        self.h2.reset_stream(number, 8)
        self.reset.add(number)
        self.pump()

    @rule(count=st.integers(1, 500_000), seed=st.integers(0, 99))
    def client_opens_a_window(self, count: int, seed: int) -> None:
        choices = [None, *self._live()]
        self.h2.increment_flow_control_window(count, random.Random(seed).choice(choices))
        self.pump()

    @rule(share=st.floats(0, 1))
    def bytes_reach_the_server(self, share: float) -> None:
        count = round(len(self.from_h2) * share)
        self.server.feed(bytes(self.from_h2[:count]))
        del self.from_h2[:count]
        self.to_h2 += self.server.take_outbound()

    @rule(share=st.floats(0, 1))
    def bytes_reach_the_client(self, share: float) -> None:
        self.receive(self.to_h2, round(len(self.to_h2) * share))

    def on_event(self, event: Any) -> None:
        super().on_event(event)
        if isinstance(event, h2.events.DataReceived):
            self.heard[event.stream_id] += event.data
        elif isinstance(event, h2.events.TrailersReceived | h2.events.ResponseReceived):
            status = {str(name): str(value) for name, value in event.headers}.get("grpc-status")
            if status is not None:
                self.status[event.stream_id] = status
        assert not isinstance(event, h2.events.StreamReset)

    @invariant()
    def nothing_is_lost_or_made_up(self) -> None:
        assert self.server.framing.failure is None, self.server.framing.failure
        for number, asked in self.asked.items():
            answers = b"".join(grpc_message(message * 2) for message in asked)
            assert answers.startswith(bytes(self.heard[number]))

    def teardown(self) -> None:
        if not hasattr(self, "server"):
            return
        for _ in range(4):
            self.bytes_reach_the_server(1.0)
            self.bytes_reach_the_client(1.0)
            self.h2.increment_flow_control_window(20_000_000)
            for number in self.asked:
                if number not in self.reset and number not in self.status:
                    self.h2.increment_flow_control_window(20_000_000, number)
            self.pump()
        self.nothing_is_lost_or_made_up()
        assert self.pings["asked"] == self.pings["answered"]
        for number, asked in self.asked.items():
            if number in self.reset:
                continue
            answers = b"".join(grpc_message(message * 2) for message in asked)
            assert bytes(self.heard[number]) == answers
            assert self.status.get(number) == ("0" if number in self.ended else None)


TestServerConversation = ServerConversation.TestCase
TestServerConversation.settings = settings(SETTINGS, max_examples=40)
