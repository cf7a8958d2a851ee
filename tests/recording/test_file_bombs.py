"""Row 48: recordings that would take far more memory or time than they have bytes."""

from __future__ import annotations

import functools
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import lz4.frame
import pytest
import zstandard
from mcap import records
from mcap.data_stream import RecordBuilder
from mcap.opcode import Opcode
from mcap.writer import MCAP0_MAGIC

from dm_env_rpc_client import dm_env_rpc_pb2
from dm_env_rpc_client.errors import RecordingError
from dm_env_rpc_client.recording import Scan, read
from dm_env_rpc_client.tensors.memory_limits import Limits
from tests.reliability.recording import Seen
from tests.reliability.scorecard import is_strict
from tests.support.programs import run_python

pytestmark = pytest.mark.row(48)

UINT8 = dm_env_rpc_pb2.UINT8
CHUNK = 32 << 20
SLACK = 64 << 20
TIMES = 8.0 if is_strict() else 100.0
"""How many times as long as the checksum of 2 GiB a reading may take. The largest bomb unpacks to
as much, and seconds of the processor alone say as much of the machine as of the package."""

_MESSAGE = struct.Struct("<BQHIQQ")

READ = """
import json, sys, time, zlib
import contextlib, os
import dm_env_rpc_client.adaptors  # All that is imported is before.
from dm_env_rpc_client import recording
from dm_env_rpc_client.errors import RecordingError
from dm_env_rpc_client.tensors.memory_limits import Limits
from tests.support import memory

path = sys.argv[1]
limits = Limits(chunk_bytes=int(sys.argv[2]))
readers = {
    "scan": lambda: [None for _ in recording.Scan(path, limits)],
    "replay": lambda: recording.replay(path, limits=limits).stop(),
    "episodes": lambda: [len(each) for each in recording.episodes(path, limits)],
    "read": lambda: recording.read(path, limits),
}

with contextlib.suppress(ModuleNotFoundError):  # Python 3.10 has none.
    import pandas  # pyarrow does so.
    from dm_env_rpc_client.recording.minari import export_minari
    os.environ["MINARI_DATASETS_PATH"] = path + ".minari"
    readers["minari"] = lambda: export_minari(path, "bomb-v0", limits=limits)

began = time.process_time()
for _ in range(8):
    zlib.crc32(bytes(32 << 20))
print(8 * (time.process_time() - began))
before = memory.watch()
for name, reader in readers.items():
    memory.watch()
    began = time.process_time()
    try:
        reader()
        text = ""
    except RecordingError as error:
        text = str(error)
    print(json.dumps([name, text, memory.peak() - before, time.process_time() - began]))
"""


def channel(number: int, **metadata: str) -> bytes:
    built = RecordBuilder()
    records.Channel(
        id=number,
        topic=f"/{number}",
        message_encoding="protobuf",
        schema_id=2 - number % 2,
        metadata={"connection": "1", "address": "localhost:1", **metadata},
    ).write(built)
    return bytes(built.end())


def message(content: bytes, of: int = 1, sequence: int = 0) -> bytes:
    return _MESSAGE.pack(Opcode.MESSAGE, 22 + len(content), of, sequence, 0, 0) + content


def chunk(compression: str, data: bytes, size: int | None = None) -> bytes:
    compress: Callable[[bytes], bytes] = {
        "zstd": functools.partial(zstandard.compress, level=1),
        "lz4": lz4.frame.compress,
        "": bytes,
    }[compression]
    return packed(
        compression, compress(data), len(data) if size is None else size, zlib.crc32(data)
    )


def packed(compression: str, data: bytes, size: int, checksum: int) -> bytes:
    built = RecordBuilder()
    records.Chunk(
        compression=compression,
        data=data,
        message_start_time=0,
        message_end_time=0,
        uncompressed_crc=checksum,
        uncompressed_size=size,
    ).write(built)
    return bytes(built.end())


def recording(*rest: bytes) -> bytes:
    """A file without an end: it has the schemas, the channels of a connection, and more."""
    built = RecordBuilder()
    built.write(MCAP0_MAGIC)
    records.Header("", "").write(built)
    for number, name in ((1, "Request"), (2, "Response")):
        full = f"dm_env_rpc.v1.Environment{name}"
        records.Schema(id=number, name=full, encoding="protobuf", data=b"").write(built)
    return b"".join([built.end(), *rest])


CHANNELS = channel(1) + channel(2)


def session(steps: int, observation: int, repeat: int, name: str = "zeros", size: int = 0) -> bytes:
    """A session whose steps have an observation of many zeros, all in equal chunks.

    Args:
      steps: how many steps a chunk has.
      observation: how many zeros a step has; none for a step without the observation.
      repeat: how many chunks.
      name: of the observation.
      size: what its spec says; 0 for as many as there are, -1 for any number.
    """
    request, answer = dm_env_rpc_pb2.EnvironmentRequest, dm_env_rpc_pb2.EnvironmentResponse
    tensor, spec = dm_env_rpc_pb2.Tensor, dm_env_rpc_pb2.TensorSpec
    specs = {
        "observations": {1: spec(name=name, dtype=UINT8, shape=[size or observation])},
        "actions": {1: spec(name="action", dtype=UINT8)},
    }
    sent: list[Any] = [request(create_world={}), request(join_world={})]
    answered: list[Any] = [
        answer(create_world={"world_name": "w"}),
        answer(join_world={"specs": specs}),
    ]
    begin = b"".join(
        message(one.SerializeToString(), of)
        for pair in zip(sent, answered, strict=True)
        for of, one in enumerate(pair, 1)
    )
    observed = {1: tensor(uint8s={"array": bytes(observation)}, shape=[observation])}
    running = {"state": dm_env_rpc_pb2.RUNNING, "observations": observed if observation else {}}
    stepped = answer(step=running)
    step = request(step={"actions": {1: tensor(uint8s={"array": b"\0"})}})
    one = message(step.SerializeToString()) + message(stepped.SerializeToString(), 2)
    return recording(CHANNELS, chunk("zstd", begin), chunk("zstd", one * steps) * repeat)


def many_channels() -> Iterator[bytes]:
    for number in range(1, 7_000):
        yield channel(number, connection=str(number), note="n" * 4000)


def numbered(connection: str) -> bytes:
    return recording(channel(1, connection=connection), message(b""))


@functools.cache
def bombs() -> Mapping[str, Callable[[], bytes]]:
    """What makes a file, by name."""
    empty = message(b"")
    half = CHUNK // 2
    return {
        "gigabytes of zeros in a chunk": lambda: recording(CHANNELS, chunk("zstd", bytes(1 << 30))),
        "a chunk that says it is small": lambda: recording(
            CHANNELS, *(chunk(name, bytes(256 << 20), 1000) for name in ("zstd", "lz4"))
        ),
        "a chunk that says it is 2**63": lambda: recording(chunk("zstd", b"", 1 << 63)),
        "zstd that does not say its size": lambda: recording(
            packed(
                "zstd",
                zstandard.ZstdCompressor(write_content_size=False).compress(bytes(256 << 20)),
                CHUNK,
                0,
            )
        ),
        "gigabytes in chunks that are allowed": lambda: recording(
            CHANNELS, chunk("zstd", message(bytes(CHUNK - 100))) * 32
        ),
        "millions of empty messages": lambda: recording(
            CHANNELS, chunk("zstd", empty * (half // len(empty))) * 4
        ),
        "millions of empty unknown records": lambda: recording(
            chunk("zstd", (b"\x70" + bytes(8)) * (half // 9)) * 4
        ),
        "requests that nobody answers": lambda: recording(
            CHANNELS, chunk("zstd", message(bytes(half))) * 16
        ),
        "gigabytes of TimeSteps": lambda: session(16, 1 << 20, 32),
        "half a million small TimeSteps": lambda: session(10_000, 1, 50),
        "one TimeStep as large as a chunk": lambda: session(1, CHUNK - 5000, 1),
        "TimeSteps of which each fills a row group": lambda: session(14, CHUNK // 16 - 3000, 1),
        "TimeSteps of which a few fill one": lambda: session(28, 1 << 20, 1),
        "lists that fill a row group": lambda: session(30, CHUNK // 32 - 2000, 1, size=-1),
        "TimeSteps beyond a row group": lambda: session(3, CHUNK // 8, 1),
        "rewards of megabytes": lambda: session(16, 1 << 20, 32, "reward"),
        "tensors of which none is there": lambda: session(200, 0, 1, size=(1 << 31) - 1),
        "channels with much metadata": lambda: recording(chunk("zstd", b"".join(many_channels()))),
        "a channel of 300 KB": lambda: recording(
            chunk("zstd", channel(1, **{f"{n:08}": "" for n in range(20_000)}))
        ),
        "a connection with a number of 5,000 digits": lambda: numbered("1" * 5000),
        "a connection with a superscript for a number": lambda: numbered("\u00b2"),
        "a connection with Arabic digits": lambda: numbered("\u0661"),
    }


@pytest.mark.parametrize("name", list(bombs()))
def test_a_file_that_is_a_bomb(tmp_path: Path, name: str, seen: Seen) -> None:
    path = tmp_path / "bomb.mcap"
    path.write_bytes(bombs()[name]())
    assert path.stat().st_size < 2 << 20
    finished = run_python("-c", READ, path, CHUNK, timeout=110.0)
    checksum, *readings = map(json.loads, finished.stdout.splitlines())
    for how, text, grown, seconds in readings:
        print(f"{how}: {grown / (1 << 20):.0f} MiB, {seconds:.1f} s, {text[-100:]}")
        # Minari copies what it is given once more.
        assert grown <= (5 if how == "minari" else 4) * CHUNK + SLACK
        assert seconds <= TIMES * checksum, f"the checksum of 2 GiB takes {checksum:.1f} s"
        if "connection with" in name:
            assert "the number of a connection is" in text
        if how == "minari" and name == "TimeSteps beyond a row group":
            assert re.search(r"requires about \d+ bytes during.*Limits\.chunk_bytes", text)
        seen(readings=1, grown_mib=grown / (1 << 20), took_s=seconds)


def test_the_limits_say_what_is_too_much(tmp_path: Path) -> None:
    path = tmp_path / "steps.mcap"
    path.write_bytes(session(16, 1 << 20, 4))
    with pytest.raises(RecordingError, match=r"contents take more.*Limits\.chunk_bytes"):
        read(path, Limits(chunk_bytes=32 << 20))
    assert len(read(path).episodes[0]) == 64
    with pytest.raises(RecordingError, match=r"chunk has \d+ bytes.*Limits\.chunk_bytes"):
        list(Scan(path, Limits(chunk_bytes=1 << 20)))
