"""A recording is read up to the last whole chunk, and what is damaged is never taken for data."""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path

import pytest
from mcap.opcode import Opcode
from mcap.writer import Writer

from dm_env_rpc_client.errors import RecordingError
from dm_env_rpc_client.recording import Recorder, Scan, mcap_file, read
from dm_env_rpc_client.tensors.memory_limits import Limits
from tests.recording.sessions import entries
from tests.recording.test_damage import places_of
from tests.recording.test_file_bombs import CHANNELS, chunk, message, recording

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
