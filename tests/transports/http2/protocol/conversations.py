"""h2 at one end of a connection, which checks all that the half at the other end may do."""

from __future__ import annotations

import collections
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.transports.frames import grpc_message

SIZES = st.sampled_from([16_384, 100_000])
WINDOWS = st.integers(65_535, 200_000)
SETTINGS = settings(max_examples=60, stateful_step_count=30, deadline=None)


class Conversation(RuleBasedStateMachine):
    """What h2 does in either role, and the bytes on their way."""

    is_over = False

    def begin_h2(self, is_client: bool, window: int, frame_size: int, **values: int) -> None:
        config = h2.config.H2Configuration(client_side=is_client, header_encoding="utf-8")
        self.h2 = h2.connection.H2Connection(config)
        values |= {"INITIAL_WINDOW_SIZE": window, "MAX_FRAME_SIZE": frame_size}
        codes = h2.settings.SettingCodes
        self.h2.local_settings = h2.settings.Settings(
            client=is_client, initial_values={codes[name]: value for name, value in values.items()}
        )
        self.h2.max_inbound_frame_size = frame_size
        self.h2.initiate_connection()
        self.to_h2, self.from_h2 = bytearray(), bytearray()
        self.pings = collections.Counter[str]()
        # h2 takes any acknowledgement for that of the last change, so one at a time.
        self.unacknowledged = 1
        self.pump()

    def pump(self) -> None:
        self.from_h2 += self.h2.data_to_send()

    def send_in_frames(
        self, number: int, message: bytes, cuts: int, pad: int | None, end: bool = False
    ) -> None:
        content = grpc_message(message)
        step = min(self.h2.max_outbound_frame_size - 256, len(content) // cuts + 1)
        for start in range(0, len(content), step):
            is_last = end and start + step >= len(content)
            part = content[start : start + step]
            self.h2.send_data(number, part, pad_length=pad, end_stream=is_last)
        self.pump()

    def receive(self, contents: bytearray, count: int) -> None:
        """Has h2 receive so many bytes, which are no longer on their way."""
        for event in self.h2.receive_data(bytes(contents[:count])):
            self.on_event(event)
        del contents[:count]
        self.pump()

    def on_event(self, event: Any) -> None:
        if isinstance(event, h2.events.PingAckReceived):
            self.pings["answered"] += 1
        elif isinstance(event, h2.events.SettingsAcknowledged):
            self.unacknowledged -= 1
        assert not isinstance(event, h2.events.ConnectionTerminated)

    @rule(window=st.integers(0, 300_000))
    @precondition(lambda self: not self.is_over and not self.unacknowledged)
    def h2_changes_settings(self, window: int) -> None:
        self.unacknowledged += 1
        self.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.pump()

    @rule()
    @precondition(lambda self: not self.is_over)
    def h2_pings(self) -> None:
        self.h2.ping(b"12345678")
        self.pings["asked"] += 1
        self.pump()
