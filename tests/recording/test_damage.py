"""Row 47: a changed bit, a hole or a missing end: the same TimeSteps, or a RecordingError."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from mcap.opcode import Opcode
from mcap.writer import Writer

from dm_env_rpc_client.errors import RecordingError
from dm_env_rpc_client.recording import Recorder, Scan, mcap_file, read
from dm_env_rpc_client.server import Server
from dm_env_rpc_client.tensors.memory_limits import Limits
from tests.recording.sessions import entries, play
from tests.recording.test_file_bombs import CHANNELS, chunk, message, recording
from tests.reliability.recording import Seen

pytestmark = pytest.mark.row(47)

COMPRESSIONS = ["none", "lz4", "zstd"]


class Made(NamedTuple):
    """A recording, and what it holds."""

    content: bytes
    path: Path


def record(server: Server, path: Path, compression: str, chunk_bytes: int) -> Made:
    """Records two connections, to several chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mcap_file, "_CHUNK_BYTES", chunk_bytes)
        with Recorder(path, compression=compression) as recorder:
            for _ in range(2):
                play(server.address, 3, record=recorder)
    return Made(path.read_bytes(), path)


@pytest.fixture(params=COMPRESSIONS)
def small(request: pytest.FixtureRequest, server: Server, path: Path) -> Made:
    """A recording whose schemas, which nobody interprets, are short, so that it has few bits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mcap_file, "_file_descriptors", lambda _: b"schema")
        return record(server, path, request.param, 600)


def places_of(content: bytes) -> Iterator[tuple[int, int]]:
    """Yields opcode and place of each record outside of chunks."""
    place = 8
    while place < len(content) - 8:
        opcode, length = struct.unpack_from("<BQ", content, place)
        yield opcode, place
        place += 9 + length


def of_messages(path: Path) -> tuple[list[Any], bool]:
    """All that TimeSteps are made of, and whether the file says that it is complete."""
    scan = Scan(path)
    return list(scan), scan.is_complete


def flip(made: Made, stride: int) -> tuple[int, int]:
    """Changes each bit in turn, or one in `stride`; returns how many, and how many were noticed."""
    expected, was_complete = of_messages(made.path)
    assert expected
    bits = range(0, 8 * len(made.content), stride)
    noticed = 0
    with open(made.path, "r+b", buffering=0) as file:
        for number in bits:
            place, bit = divmod(number, 8)
            file.seek(place)
            file.write(bytes([made.content[place] ^ 1 << bit]))
            try:
                found, is_complete = of_messages(made.path)
            except RecordingError:
                noticed += 1
            else:
                assert found == expected, (place, bit)
                assert is_complete <= was_complete, (place, bit)
            file.seek(place)
            file.write(made.content[place : place + 1])
    return len(bits), noticed


# One in 31 in the gate: it is coprime to 8, so that all bits of a byte have their turn.
STRIDES = pytest.mark.parametrize(
    "stride",
    [
        pytest.param(31, id="some"),
        pytest.param(1, id="all", marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)


def changed(made: Made, content: bytes) -> Made:
    made.path.write_bytes(content)
    return Made(content, made.path)


def without_end(made: Made) -> Made:
    """The file of a recorder that was killed."""
    (end,) = (place for opcode, place in places_of(made.content) if opcode == Opcode.DATA_END)
    return changed(made, made.content[:end])


def without_checksums(made: Made) -> Made:
    """The file as earlier versions and most other programs write it: without these checksums."""
    content = bytearray(made.content)
    for opcode, place in places_of(made.content):
        if opcode == Opcode.DATA_END:
            content[place + 9 : place + 13] = bytes(4)
    content[-12:-8] = bytes(4)
    return changed(made, bytes(content))


@STRIDES
@pytest.mark.parametrize("form", [None, without_end, without_checksums])
def test_every_bit_that_is_changed(
    small: Made, form: Callable[[Made], Made] | None, stride: int, seen: Seen
) -> None:
    chunks = [place for opcode, place in places_of(small.content) if opcode == Opcode.CHUNK]
    assert len(chunks) > 2
    bits, noticed = flip(small if form is None else form(small), stride)
    # Changed times in an index, outside of chunks, change no TimeStep.
    assert noticed == bits if form is None else noticed > bits // 2
    seen(bits=bits, silently_fewer=0)


@STRIDES
def test_every_byte_at_which_a_file_is_cut_off(small: Made, stride: int, seen: Seen) -> None:
    expected, is_complete = of_messages(small.path)
    assert is_complete
    counts = []
    (end,) = (place for opcode, place in places_of(small.content) if opcode == Opcode.DATA_END)
    # The whole chunks are there, from `end` on.
    sizes = sorted({*range(8, len(small.content), stride), end})
    for size in sizes:
        small.path.write_bytes(small.content[:size])
        found, is_complete = of_messages(small.path)
        assert not is_complete
        assert found == expected[: len(found)]
        counts.append(len(found))
    assert counts == sorted(counts)
    assert len(set(counts)) > 3
    assert counts[sizes.index(end)] == len(expected)
    seen(cuts=len(counts), silently_fewer=0)


COUNT = 60


@pytest.fixture(scope="module", params=["zstd", "none"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of many small chunks."""
    path = tmp_path_factory.mktemp("whole") / "whole.mcap"
    content = random.Random(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mcap_file, "_CHUNK_BYTES", 500)
        with Recorder(path, compression=request.param) as recorder:
            recordings = [recorder.connection("localhost:1", {}) for _ in range(2)]
            for index in range(COUNT):
                recordings[index % 2].request(content.randbytes(index))
                recordings[index % 2].answer(content.randbytes(2 * index))
    return path


def test_a_chunk_that_is_missing_is_noticed(whole: Path, tmp_path: Path) -> None:
    content = whole.read_bytes()
    places = list(places_of(content))
    chunks = [index for index, (opcode, _) in enumerate(places) if opcode == Opcode.CHUNK]
    middle, after = chunks[len(chunks) // 2], chunks[len(chunks) // 2 + 1]
    begin, end = places[middle][1], places[middle + 1][1]
    path = tmp_path / "hole.mcap"
    path.write_bytes(content[:begin] + content[end:])
    with pytest.raises(RecordingError, match=r"damaged at byte \d+: the index of a chunk has"):
        entries(path)
    # With its indexes.
    path.write_bytes(content[:begin] + content[places[after][1] :])
    with pytest.raises(RecordingError, match=r"damaged .*: (request|answer) \d+ .* follows"):
        entries(path)


def test_a_file_without_its_header_is_damaged(whole: Path, tmp_path: Path) -> None:
    content = whole.read_bytes()
    (opcode, begin), (_, end) = list(places_of(content))[:2]
    assert opcode == Opcode.HEADER
    path = tmp_path / "headless.mcap"
    path.write_bytes(content[:begin] + content[end:])
    with pytest.raises(RecordingError, match=r"damaged at byte .* does not begin with a header"):
        entries(path)


def test_a_changed_length_does_not_look_like_a_file_that_was_cut_off(path: Path) -> None:
    begun = recording(CHANNELS, message(b"one", sequence=1))
    content = chunk("", message(b"two", sequence=2))
    path.write_bytes(begun + content)
    assert [entry.message for entry in entries(path)] == [b"one", b"two"]
    path.write_bytes(begun + content[:-1])
    assert [entry.message for entry in entries(path)] == [b"one"]
    # The chunk says that it is longer than the rest of the file; its fields do not.
    path.write_bytes(begun + content[:3] + b"\1" + content[4:])
    wrong = r"declared length of \d+ bytes, but its fields take \d+ bytes"
    with pytest.raises(RecordingError, match=wrong):
        entries(path)


def test_an_index_takes_no_more_memory_than_its_record(path: Path) -> None:
    size = 16 << 20
    index = struct.pack("<BQHI", Opcode.MESSAGE_INDEX, size + 6, 1, size) + bytes(size)
    path.write_bytes(recording(CHANNELS, chunk("", message(b"")), index))
    tracemalloc.start()
    try:
        with pytest.raises(RecordingError, match=r"the index of a chunk has 1\.04858e"):
            entries(path)
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        tracemalloc.stop()


def test_what_is_no_recording(tmp_path: Path) -> None:
    path = tmp_path / "no.mcap"
    with pytest.raises(RecordingError, match="No such file"):
        entries(path)
    for content in (b"", b"\x89MCAP", b"{}" * 100):
        path.write_bytes(content)
        with pytest.raises(RecordingError, match="not an MCAP file"):
            entries(path)
    with pytest.raises(RecordingError, match="Is a directory"):
        entries(tmp_path)


def test_a_record_of_an_absurd_length_is_refused(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"at most 300 are allowed \(Limits\.chunk_bytes\)"):
        list(Scan(whole, Limits(chunk_bytes=300)))
    with pytest.raises(RecordingError, match=r"at most 30 are allowed \(Limits\.message_bytes\)"):
        list(Scan(whole, Limits(message_bytes=30)))
    path = tmp_path / "absurd.mcap"
    path.write_bytes(whole.read_bytes()[:8] + struct.pack("<BQ", 6, 1 << 62))
    assert entries(path) == []  # It cannot be whole.


def test_channels_of_others_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "other.mcap"
    writer = Writer(str(path))
    writer.start()
    schema = writer.register_schema("example.Other", "protobuf", b"")
    channel = writer.register_channel("/other", "protobuf", schema)
    writer.add_message(channel, 1, b"hello", 1)
    writer.finish()
    found = read(path)
    assert (found.connections, found.episodes, found.is_complete) == ({}, [], True)


def test_a_file_without_chunks_that_another_program_wrote(tmp_path: Path) -> None:
    path = tmp_path / "flat.mcap"
    writer = Writer(str(path), use_chunking=False)
    writer.start()
    schema = writer.register_schema("dm_env_rpc.v1.EnvironmentRequest", "protobuf", b"")
    metadata = {"connection": "4", "direction": "requests", "address": "localhost:1"}
    channel = writer.register_channel("/connection-4/requests", "protobuf", schema, metadata)
    writer.add_message(channel, 7, b"hello", 7, sequence=1)
    writer.finish()
    (entry,) = entries(path)
    assert entry[1:] == (True, 1, 7, b"hello")
    assert (entry.connection.number, entry.connection.address) == (4, "localhost:1")
