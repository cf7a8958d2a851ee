"""The server's half against h2 as the client, which checks all that a server may do."""

from __future__ import annotations

import collections
import random
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.transports.frames import REQUEST, grpc_message
from tests.transports.server_shell import Server


class Conversation(RuleBasedStateMachine):
    @initialize(window=st.integers(65_535, 200_000), frame_size=st.sampled_from([16_384, 100_000]),
                table=st.sampled_from([0, 100, 4_096]))  # fmt: skip
    def begin(self, window: int, frame_size: int, table: int) -> None:
        codes = h2.settings.SettingCodes
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self.client = h2.connection.H2Connection(config)
        self.client.local_settings = h2.settings.Settings(
            client=True,
            initial_values={
                codes.INITIAL_WINDOW_SIZE: window,
                codes.MAX_FRAME_SIZE: frame_size,
                codes.HEADER_TABLE_SIZE: table,
                codes.ENABLE_PUSH: 0,
            },
        )
        self.client.max_inbound_frame_size = frame_size
        self.client.decoder.max_allowed_table_size = table
        self.client.initiate_connection()
        self.server = Server(max_streams=100)
        self.to_server, self.to_client = bytearray(), bytearray()
        self.asked: dict[int, list[bytes]] = {}
        self.heard: dict[int, bytearray] = {}
        self.ended: set[int] = set()
        self.status: dict[int, str] = {}
        self.reset: set[int] = set()
        self.pings = collections.Counter[str]()
        self.next_stream = 1
        self.unacknowledged = 1

    def _live(self) -> list[int]:
        return [one for one in self.asked if one not in self.ended and one not in self.reset]

    def _pump(self) -> None:
        self.to_server += self.client.data_to_send()

    @rule(more=st.sampled_from([0, 10, 3_000]))
    @precondition(lambda self: len(self._live()) < 8)
    def client_opens(self, more: int) -> None:
        number, self.next_stream = self.next_stream, self.next_stream + 2
        self.client.send_headers(number, [*REQUEST, ("more", "x" * more)])
        self.asked[number], self.heard[number] = [], bytearray()
        self._pump()

    @rule(size=st.integers(0, 300) | st.integers(0, 60_000), pad=st.integers(0, 255) | st.none(),
          cuts=st.integers(1, 4), seed=st.integers(0, 99), end=st.booleans())  # fmt: skip
    @precondition(lambda self: self._live())
    def client_asks(self, size: int, pad: int | None, cuts: int, seed: int, end: bool) -> None:
        rng = random.Random(seed)
        number = rng.choice(self._live())
        message = rng.randbytes(size)
        content = grpc_message(message)
        room = self.client.local_flow_control_window(number)
        if len(content) + 260 * (len(content) // 100 + cuts) > room:
            return
        self.asked[number].append(message)
        step = min(self.client.max_outbound_frame_size - 256, len(content) // cuts + 1)
        for start in range(0, len(content), step):
            is_last = end and start + step >= len(content)
            part = content[start : start + step]
            self.client.send_data(number, part, pad_length=pad, end_stream=is_last)
        if end:
            self.ended.add(number)
        self._pump()

    @rule(seed=st.integers(0, 99))
    @precondition(lambda self: self._live())
    def client_resets(self, seed: int) -> None:
        number = random.Random(seed).choice(self._live())
        self.client.reset_stream(number, 8)
        self.reset.add(number)
        self._pump()

    @rule(count=st.integers(1, 500_000), seed=st.integers(0, 99))
    def client_opens_a_window(self, count: int, seed: int) -> None:
        choices = [None, *self._live()]
        self.client.increment_flow_control_window(count, random.Random(seed).choice(choices))
        self._pump()

    @rule(window=st.integers(0, 300_000))
    @precondition(lambda self: not self.unacknowledged)
    def client_changes_settings(self, window: int) -> None:
        self.unacknowledged += 1
        self.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        self._pump()

    @rule()
    def client_pings(self) -> None:
        self.client.ping(b"12345678")
        self.pings["asked"] += 1
        self._pump()

    @rule(share=st.floats(0, 1))
    def bytes_reach_the_server(self, share: float) -> None:
        count = round(len(self.to_server) * share)
        self.server.feed(bytes(self.to_server[:count]))
        del self.to_server[:count]
        self.to_client += self.server.take_outbound()

    @rule(share=st.floats(0, 1))
    def bytes_reach_the_client(self, share: float) -> None:
        count = round(len(self.to_client) * share)
        for event in self.client.receive_data(bytes(self.to_client[:count])):
            self._on_event(event)
        del self.to_client[:count]
        self._pump()

    def _on_event(self, event: Any) -> None:
        if isinstance(event, h2.events.DataReceived):
            self.heard[event.stream_id] += event.data
        elif isinstance(event, h2.events.TrailersReceived | h2.events.ResponseReceived):
            status = {str(name): str(value) for name, value in event.headers}.get("grpc-status")
            if status is not None:
                self.status[event.stream_id] = status
        elif isinstance(event, h2.events.PingAckReceived):
            self.pings["answered"] += 1
        elif isinstance(event, h2.events.SettingsAcknowledged):
            self.unacknowledged -= 1
        assert not isinstance(event, h2.events.ConnectionTerminated | h2.events.StreamReset)

    @invariant()
    def nothing_is_lost_or_made_up(self) -> None:
        if not hasattr(self, "server"):
            return
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
            self.client.increment_flow_control_window(20_000_000)
            for number in self.asked:
                if number not in self.reset and number not in self.status:
                    self.client.increment_flow_control_window(20_000_000, number)
            self._pump()
        self.nothing_is_lost_or_made_up()
        assert self.pings["asked"] == self.pings["answered"]
        for number, asked in self.asked.items():
            if number in self.reset:
                continue
            answers = b"".join(grpc_message(message * 2) for message in asked)
            assert bytes(self.heard[number]) == answers
            assert self.status.get(number) == ("0" if number in self.ended else None)


Conversation.TestCase.settings = hypothesis_settings(
    max_examples=40, stateful_step_count=30, deadline=None
)
TestConversation = Conversation.TestCase
