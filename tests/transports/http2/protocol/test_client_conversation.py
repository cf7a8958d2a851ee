"""The client's half against h2 as the server, which checks all that a client may do."""

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

from dm_env_rpc_client import ConnectionLostError
from tests.transports import frames
from tests.transports.client_call import feed, framing, received
from tests.transports.frames import grpc_message


class Conversation(RuleBasedStateMachine):
    @initialize(window=st.integers(65_535, 200_000), frame_size=st.sampled_from([16_384, 100_000]))
    def begin(self, window: int, frame_size: int) -> None:
        config = h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        self.server = h2.connection.H2Connection(config)
        self.server.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window,
                h2.settings.SettingCodes.MAX_FRAME_SIZE: frame_size,
            },
        )
        self.server.max_inbound_frame_size = frame_size
        self.server.initiate_connection()
        self.client = framing()
        self.to_server, self.to_client = bytearray(), bytearray()
        self.client_said: list[bytes] = []
        self.server_said: list[bytes] = []
        self.server_heard = bytearray()
        self.has_begun = self.is_over = self.client_ended = self.server_knows_end = False
        self.pings = collections.Counter[str]()
        # h2 takes any acknowledgement for that of the last change, so one at a time.
        self.unacknowledged = 1

    def _pump_server(self) -> None:
        self.to_client += self.server.data_to_send()

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
        waiting = b"".join(bytes(part) for part in self.client.outbound)
        count = round(len(waiting) * share)
        self.to_server += waiting[:count]
        self.client.sent(count)
        if self.is_over:
            return
        for event in self.server.receive_data(bytes(self.to_server)):
            self._on_event(event)
        self.to_server.clear()
        self._pump_server()

    def _on_event(self, event: Any) -> None:
        if isinstance(event, h2.events.RequestReceived):
            self.has_begun = True
            assert [(str(k), str(v)) for k, v in event.headers] == frames.REQUEST
            self.server.send_headers(1, list(frames.RESPONSE))
        elif isinstance(event, h2.events.DataReceived):
            self.server_heard += event.data
        elif isinstance(event, h2.events.StreamEnded):
            self.server_knows_end = True
        elif isinstance(event, h2.events.PingAckReceived):
            self.pings["answered"] += 1
        elif isinstance(event, h2.events.SettingsAcknowledged):
            self.unacknowledged -= 1
        assert not isinstance(event, h2.events.ConnectionTerminated)

    @rule(size=st.integers(0, 300) | st.integers(0, 150_000), pad=st.integers(0, 255) | st.none(),
          cuts=st.integers(1, 4), seed=st.integers(0, 99))  # fmt: skip
    @precondition(lambda self: self.has_begun and not self.is_over)
    def server_sends(self, size: int, pad: int | None, cuts: int, seed: int) -> None:
        message = random.Random(seed).randbytes(size)
        content = grpc_message(message)
        self.server_said.append(message)
        largest = self.server.max_outbound_frame_size - 256
        step = min(largest, len(content) // cuts + 1)
        for start in range(0, len(content), step):
            self.server.send_data(1, content[start : start + step], pad_length=pad)
        self._pump_server()

    @rule(count=st.integers(1, 500_000), stream=st.sampled_from([None, 1]))
    @precondition(lambda self: self.has_begun and not self.is_over)
    def server_opens_a_window(self, count: int, stream: int | None) -> None:
        self.server.increment_flow_control_window(count, stream)
        self._pump_server()

    @rule(window=st.integers(0, 300_000))
    @precondition(lambda self: not self.is_over and not self.unacknowledged)
    def server_changes_settings(self, window: int) -> None:
        self.unacknowledged += 1
        self.server.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        self._pump_server()

    @rule()
    @precondition(lambda self: not self.is_over)
    def server_pings(self) -> None:
        self.server.ping(b"12345678")
        self.pings["asked"] += 1
        self._pump_server()

    @rule(share=st.floats(0, 1))
    def bytes_reach_the_client(self, share: float) -> None:
        count = round(len(self.to_client) * share)
        feed(self.client, bytes(self.to_client[:count]))
        del self.to_client[:count]

    @rule()
    @precondition(lambda self: self.has_begun and not self.is_over)
    def server_ends(self) -> None:
        self.server.send_headers(1, [("grpc-status", "0")], end_stream=True)
        self.is_over = True
        self._pump_server()

    @invariant()
    def nothing_is_lost_or_made_up(self) -> None:
        if not hasattr(self, "client"):
            return
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
                self.server.increment_flow_control_window(100_000_000)
                self.server.increment_flow_control_window(100_000_000, 1)
                self._pump_server()
            self.bytes_reach_the_client(1.0)
        self.nothing_is_lost_or_made_up()
        assert received(self.client) == self.server_said
        if self.is_over:
            assert isinstance(self.client.failure, ConnectionLostError)
        else:
            assert bytes(self.server_heard) == b"".join(map(grpc_message, self.client_said))
            assert self.server_knows_end == self.client_ended
            assert self.pings["asked"] == self.pings["answered"]


Conversation.TestCase.settings = hypothesis_settings(
    max_examples=60, stateful_step_count=30, deadline=None
)
TestConversation = Conversation.TestCase
