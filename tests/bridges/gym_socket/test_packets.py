from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dm_env_rpc_client.bridges.gym_socket import packets
from dm_env_rpc_client.bridges.gym_socket.packets import Limits, ObservationBounds
from dm_env_rpc_client.errors import ProtocolError, SpecError
from tests.bridges.gym_socket import transcripts
from tests.bridges.gym_socket.transcripts import Given

LIMITS = Limits()
RESET = packets.Reset()


def read_all(read: Callable[..., Any], data: bytes, *arguments: Any) -> Any:
    """Reads a message, and no byte of the next one."""
    given = Given(data + b"next")
    message = read(given, *arguments)
    assert given.left == b"next"
    return message


def encoded_answer(request: packets.Request, answer: Any) -> bytes:
    if isinstance(request, packets.Step):
        return packets.encode_step_answer(*answer)
    encode = {
        packets.Reset: packets.encode_observation,
        packets.GetSpace: packets.encode_space,
        packets.SampleAction: packets.encode_action,
    }.get(type(request), packets.encode_error)
    return encode(answer)


EACH_PACKET = pytest.mark.parametrize(
    ("exchanged", "dialect"), transcripts.IN_DIALECTS.values(), ids=transcripts.IN_DIALECTS
)


@EACH_PACKET
def test_packets_are_written_as_the_document_says(
    exchanged: transcripts.Exchanged, dialect: packets.Dialect
) -> None:
    assert packets.encode_request(exchanged.request, dialect) == exchanged.sent
    if exchanged.received is not None:
        assert encoded_answer(exchanged.request, exchanged.answer) == exchanged.received


@EACH_PACKET
def test_packets_are_read_as_the_document_says(
    exchanged: transcripts.Exchanged, dialect: packets.Dialect
) -> None:
    sent, received, request = exchanged.sent, exchanged.received, exchanged.request
    assert read_all(packets.read_request, sent, dialect, LIMITS) == request
    assert packets.has_answer(request, dialect) == (received is not None)
    if received is not None:
        answer = read_all(packets.read_answer, received, request, LIMITS)
        np.testing.assert_equal(answer, exchanged.answer)


@pytest.mark.parametrize(("data", "handshake"), transcripts.HANDSHAKES.items())
def test_handshakes(data: bytes, handshake: packets.Handshake) -> None:
    assert packets.encode_request(handshake) == data
    assert read_all(packets.read_handshake, data, LIMITS) == handshake


@pytest.mark.parametrize(("data", "message"), transcripts.ERRORS.items())
def test_error_strings(data: bytes, message: str) -> None:
    assert packets.encode_error(message) == data
    answer = read_all(packets.read_answer, data, packets.Handshake("name"), LIMITS)
    assert answer == message


@pytest.mark.parametrize(
    "array", [np.uint8(7), np.zeros((0,), np.uint8), np.zeros((3, 0, 2), np.uint8)]
)
def test_byte_lists_of_few_elements(array: Any) -> None:
    data = packets.encode_observation(np.asarray(array))
    np.testing.assert_array_equal(packets.read_answer(Given(data), RESET, LIMITS), array)


READERS: dict[str, Callable[[Given], object]] = {
    "first": lambda given: packets.read_request(given, "first", LIMITS),
    "latest": lambda given: packets.read_request(given, "latest", LIMITS),
    "handshake": lambda given: packets.read_handshake(given, LIMITS),
    "answer": lambda given: packets.read_answer(given, RESET, LIMITS),
}


@pytest.mark.parametrize(
    ("reader", "data", "message"),
    [
        ("first", b"\x07", "packet type 7"),
        ("latest", b"\x09", "packet type 9"),
        ("first", b"\xff", "packet type 255"),
        ("first", b"\x02\x02", "space 2"),
        ("first", b"\x01\x01", "action type 1"),
        ("first", b"\x04\x02", "0x02"),
        ("latest", b"\x04\x01\x01\x07", "0x07"),
        ("first", b"\x01\x00\xff\xff\xff\xff", "4294967295 bytes"),
        ("first", b"\x01\x00\x01\x00\x10\x00", "1048577 bytes"),
        ("first", b"\x04\x00\x00\x02\x00\x00\x00\xff\xfe", "not UTF-8"),
        ("first", b"\x01\x00\x02\x00\x00\x00{]", "expected UTF-8 JSON"),
        ("first", b"\x01\x00\x00\x00\x00\x00", "expected UTF-8 JSON"),
        ("latest", b"\x08\x01\x01\x00\x00", "257 bytes"),
        ("handshake", b"\x01", "flags 0x01"),
        ("handshake", b"\x00\x01\x01\x00\x00", "257 bytes"),
        ("handshake", b"\x00\xff\xff\xff\xff", "4294967295 bytes"),
        ("handshake", b"\x00\x01\x00\x00\x00\xff", "not UTF-8"),
        ("answer", b"\x02\x00\x00\x00\x00", "observation type 2"),
        ("answer", b"\x00\xff\xff\xff\xff", "4294967295 bytes"),
        ("answer", b"\x01\xff\xff\xff\xff", "4294967295 bytes"),
        ("answer", b"\x01\x03\x00\x00\x00", "is too short to state its dimensions"),
        ("answer", b"\x01\x04\x00\x00\x00\x01\x00\x00\x00", "1 dimensions"),
        ("answer", b"\x01\xff\x00\x00\x00\x21\x00\x00\x00", "33 dimensions"),
        ("answer", b"\x01\x0a\x00\x00\x00\x01\x00\x00\x00\x03\x00\x00\x00", "has 2 bytes of data"),
        (
            "answer",
            b"\x01\x10\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff",
            r"shape \[0, 4294967295, 4294967295\]",
        ),
    ],
)
def test_other_packets_handshakes_and_observations_are_refused(
    reader: str, data: bytes, message: str
) -> None:
    with pytest.raises(ProtocolError, match=message):
        READERS[reader](Given(data))


def test_a_byte_list_has_the_shape_and_the_size_that_the_space_says() -> None:
    bounds = ObservationBounds(shape=(2000, 1000))
    frame = np.zeros((2000, 1000), np.uint8)
    # More than a field, since the space says so.
    given = Given(packets.encode_observation(frame))
    assert packets.read_answer(given, RESET, LIMITS, bounds).shape == (2000, 1000)
    for wrong in (np.zeros((1000, 2000), np.uint8), np.zeros((2000, 1001), np.uint8)):
        given = Given(packets.encode_observation(wrong))
        with pytest.raises(ProtocolError, match=r"shape \[1000, 2000\]|2002012 bytes"):
            packets.read_answer(given, RESET, LIMITS, bounds)


def test_done_is_0_or_1() -> None:
    data = bytearray(packets.encode_step_answer(0, 0.0, False, {}))
    data[14] = 2
    with pytest.raises(ProtocolError, match="done: byte 0x02"):
        packets.read_answer(Given(bytes(data)), packets.Step(0), LIMITS)


@pytest.mark.parametrize(
    "request_",
    [packets.UniverseConfigure({}), packets.UniverseWrap("", {}), packets.Monitor("m", video=True)],
)
def test_the_first_dialect_cannot_say_what_only_the_latest_has(request_: packets.Request) -> None:
    with pytest.raises(SpecError, match="only the latest dialect"):
        packets.encode_request(request_, "first")


def test_what_no_packet_can_hold_is_not_written() -> None:
    with pytest.raises(SpecError, match="unknown dialect 'second'"):
        packets.check_dialect("second")
    with pytest.raises(SpecError, match="cannot be encoded as JSON"):
        packets.encode_request(packets.Step(float("nan")))
    with pytest.raises(SpecError, match="not a Unicode string"):
        packets.encode_request(packets.Handshake("\ud800"))
    with pytest.raises(SpecError, match="a byte list must be uint8"):
        packets.encode_observation(np.zeros(2, np.int8))
