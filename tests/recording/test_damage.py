"""Row 47: a changed bit or a missing end gives the same TimeSteps, or a RecordingError."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from mcap.opcode import Opcode

from dm_env_rpc_client.errors import RecordingError
from dm_env_rpc_client.recording import Recorder, Scan, mcap_file
from dm_env_rpc_client.server import Server
from tests.recording.sessions import play
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
