"""A recording has every message, changes nothing else, and outlives a recorder that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from mcap.reader import make_reader

import dm_env_rpc_client
from dm_env_rpc_client import dm_env_rpc_pb2
from dm_env_rpc_client.errors import ConnectionLostError, RecordingError, SpecError
from dm_env_rpc_client.recording import Recorder, proxy, read, replay
from dm_env_rpc_client.recording import recorder as recorders
from dm_env_rpc_client.recording.recorder import FLUSH_SECONDS
from dm_env_rpc_client.server import Catch, Server, serve
from tests.launch.processes import Launcher
from tests.recording.sessions import SETTINGS, assert_same, entries, move, play, recorded
from tests.reliability.scorecard import counts
from tests.support.environments import Constant
from tests.support.forks import context, end
from tests.support.ports import HeldPort
from tests.support.programs import run_python
from tests.support.scripted import settles
from tests.support.stopwatch import Stopwatch

pytestmark = pytest.mark.filterwarnings("ignore::dm_env_rpc_client.RestartWarning")


@pytest.mark.parametrize("transport", ["http2", "grpc"])
def test_a_recorded_session_is_the_same_and_has_every_message(
    server: Server, path: Path, transport: Any
) -> None:
    plain = play(server.address, 50, transport=transport)
    before = time.time_ns()
    timesteps = play(server.address, 50, transport=transport, record=path)
    after = time.time_ns()
    assert_same(plain, timesteps)
    found = entries(path)
    requests = [entry for entry in found if entry.is_request]
    answers = [entry for entry in found if not entry.is_request]
    # CreateWorld, JoinWorld, the first Step of the reset, LeaveWorld, DestroyWorld.
    assert len(requests) == len(answers) == 55
    assert [entry.sequence for entry in requests] == list(range(1, 56))
    times = [entry.nanoseconds for entry in found]
    assert times == sorted(times)
    assert before - 10**8 < times[0] < times[-1] < after + 10**8
    for request, answer in zip(requests, answers, strict=True):
        assert request.nanoseconds <= answer.nanoseconds
        sent = dm_env_rpc_pb2.EnvironmentRequest.FromString(request.message)
        received = dm_env_rpc_pb2.EnvironmentResponse.FromString(answer.message)
        assert sent.WhichOneof("payload") == received.WhichOneof("payload")


def test_the_file_opens_with_the_package_mcap_alone(server: Server, path: Path) -> None:
    play(server.address, 20, record=path)
    with open(path, "rb") as file:
        reader = make_reader(file, validate_crcs=True)
        assert reader.get_header().profile == "dm_env_rpc"
        summary = reader.get_summary()
        assert summary is not None
        assert summary.statistics is not None
        assert summary.statistics.message_count == 50
        found = list(reader.iter_messages(topics=["/connection-1/answers"]))
    assert len(found) == 25
    for schema, channel, _ in found:
        assert schema is not None
        assert (schema.encoding, channel.message_encoding) == ("protobuf", "protobuf")
    # The messages are decoded by the schema in the file, and not by modules of this package.
    schema, _, last = found[-3]
    assert schema is not None
    pool = descriptor_pool.DescriptorPool()
    for one in descriptor_pb2.FileDescriptorSet.FromString(schema.data).file:
        pool.Add(one)
    decoded: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName(schema.name))()
    decoded.ParseFromString(last.data)
    assert len(decoded.step.observations[1].floats.array) == 20


@pytest.mark.row(54)
def test_what_is_said_about_a_connection_is_not_secret(path: Path) -> None:
    with serve(Catch, token="hunter2") as secured:
        metadata = [("x-password", "sesame")]
        play(secured.address, 1, record=path, token="hunter2", metadata=metadata)
    (connection,) = read(path).connections.values()
    assert connection.address == secured.address
    assert connection.metadata["version"] == dm_env_rpc_client.__version__
    assert connection.metadata["transport"] == "auto"
    content = (
        b"".join(entry.message for entry in entries(path))
        + str(connection.metadata).encode()
        + path.read_bytes()
    )
    for secret in (b"hunter2", b"sesame", b"x-password", b"authorization"):
        assert secret not in content


def test_a_file_is_not_overwritten(server: Server, path: Path) -> None:
    path.write_bytes(b"something else")
    with pytest.raises(RecordingError, match=r"run.mcap: the file exists"):
        play(server.address, 1, record=path)
    assert path.read_bytes() == b"something else"
    with pytest.raises(RecordingError, match="No such file"):
        play(server.address, 1, record=path.parent / "no" / "folder.mcap")
    with pytest.raises(SpecError, match="unknown compression 'gzip'; choose one of 'zstd'"):
        Recorder(path, compression="gzip")


def test_what_cannot_connect_leaves_no_file(server: Server, path: Path) -> None:
    with HeldPort() as dead:
        for _ in range(2):
            with pytest.raises(ConnectionLostError):
                dm_env_rpc_client.make(dead.address, timeout=0.1, record=path)
    gc.collect()
    assert settles(lambda: not path.exists())
    play(server.address, 1, record=path)
    assert len(entries(path)) == 12


def test_servers_that_are_launched_again_have_one_file(path: Path) -> None:
    launcher = Launcher("dm_env_rpc_client.server:Catch")
    restart = dm_env_rpc_client.Restart(attempts=2, backoff=0.01)

    async def run() -> None:
        async with await dm_env_rpc_client.make_async(
            launcher, record=path, restart=restart
        ) as env:
            await env.reset()
            await env.step({"paddle": 1})
            launcher.kill()
            assert (await env.step({"paddle": 1})).last()
            assert (await env.reset()).first()
            await env.step({"paddle": 1})

    asyncio.run(run())
    recording = read(path)
    assert recording.is_complete
    assert len({each.address for each in recording.connections.values()}) == 2
    assert {(len(each), each.end) for each in recording.episodes} == {
        (2, "unfinished"), (2, "interrupted")
    }  # fmt: skip


@pytest.mark.parametrize("compression", ["zstd", "lz4", "none"])
def test_connections_share_a_recorder_one_after_the_other(
    server: Server, path: Path, compression: str
) -> None:
    with Recorder(path, compression=compression) as recorder:
        first = play(server.address, 10, record=recorder)
        assert read(path).is_complete
        assert len(read(path).connections) == 1
        second = play(server.address, 20, record=recorder)
    assert_same(first, second[:11])
    assert len(entries(path)) == 2 * (10 + 20 + 5 + 5)
    recording = read(path)
    assert [len(recording.connections), recording.is_complete] == [2, True]
    with pytest.raises(RecordingError, match="is closed"):
        play(server.address, 1, record=recorder)


def test_connections_to_one_path_share_the_file_while_one_is_open(
    server: Server, path: Path
) -> None:
    with dm_env_rpc_client.connect(server.address, record=path) as first:
        first.send(dm_env_rpc_pb2.CreateWorldRequest())
        with dm_env_rpc_client.connect(server.address, record=str(path)) as second:
            second.send(dm_env_rpc_pb2.CreateWorldRequest())
        first.send(dm_env_rpc_pb2.CreateWorldRequest())
    assert [entry.connection.number for entry in entries(path)] == [1, 1, 2, 2, 1, 1]
    with pytest.raises(RecordingError, match="the file exists"):
        dm_env_rpc_client.connect(server.address, record=path)


@pytest.mark.parametrize("transport", ["http2", "grpc"])
def test_an_observation_that_the_caller_changes_is_recorded_as_it_came(
    path: Path, transport: Any
) -> None:
    # So large that the transport reads it into memory of its own.
    image = np.random.default_rng(0).integers(255, size=(400, 400, 3), dtype=np.uint8)
    camera = Constant({"frame": specs.Array(image.shape, np.uint8)}, {"frame": image})
    with recorded(path, lambda: camera, transport=transport) as env:
        frame = env.reset().observation["frame"]
        kept = frame.copy()
        frame[...] = 255 - frame
    (episode,) = read(path).episodes
    np.testing.assert_array_equal(episode.timesteps.observation["frame"][0], kept)


def test_an_environment_that_nobody_closes_is_recorded_to_its_end(
    server: Server, path: Path
) -> None:
    env = dm_env_rpc_client.make(server.address, record=path)
    env.reset()
    del env
    gc.collect()
    assert settles(lambda: read(path).is_complete, 30)
    assert len([entry for entry in entries(path) if entry.is_request]) == 5


def test_an_interpreter_that_exits_completes_the_file(server: Server, path: Path) -> None:
    program = (
        "import sys, dm_env_rpc_client\n"
        "env = dm_env_rpc_client.make(sys.argv[1], record=sys.argv[2])\n"
        "env.reset()\n"
    )
    run_python("-W", "error", "-c", program, server.address, path)
    assert read(path).is_complete
    assert len(entries(path)) == 10


def test_a_file_has_as_many_connections_as_it_can(
    server: Server, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorders, "MAX_CONNECTIONS", 2)
    with Recorder(path) as recorder:
        for _ in range(2):
            play(server.address, 1, record=recorder)
        with pytest.raises(RecordingError, match="has 2 connections, the maximum for a file"):
            play(server.address, 1, record=recorder)
    assert len(read(path).connections) == 2


def test_a_connection_does_not_outlive_its_recorder_in_silence(server: Server, path: Path) -> None:
    with Recorder(path) as recorder:
        connection = dm_env_rpc_client.connect(server.address, record=recorder)
        connection.send(dm_env_rpc_pb2.CreateWorldRequest())
    assert len(entries(path)) == 2
    with pytest.raises(ConnectionLostError, match="the recorder was closed before it"):
        connection.send(dm_env_rpc_pb2.CreateWorldRequest())
    connection.close()
    assert read(path).is_complete


FORKED = """
import os, sys
import dm_env_rpc_client
from dm_env_rpc_client.errors import ConnectionLostError, RecordingError
from dm_env_rpc_client.recording import Recorder

address, path = sys.argv[1:]
recorder = Recorder(path)
env = dm_env_rpc_client.make(address, record=recorder)
env.reset()
child = os.fork()
if not child:
    for failing in (
        lambda: env.step({"paddle": 1}),
        lambda: dm_env_rpc_client.make(address, record=recorder),
        lambda: dm_env_rpc_client.make(address, record=path),
    ):
        try:
            failing()
        except (ConnectionLostError, RecordingError) as error:
            print("child:", error, flush=True)
    recorder.settle()
    recorder.close()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
for _ in range(20):
    env.step({"paddle": 1})
env.close()
recorder.close()
"""


def test_a_forked_child_leaves_the_recording_to_its_parent(server: Server, path: Path) -> None:
    finished = run_python("-c", FORKED, server.address, path)
    assert finished.stdout.count("which forked this one") == 2
    assert "record to a separate file in each process" in finished.stdout
    assert "the file exists" in finished.stdout
    recording = read(path)
    assert recording.is_complete
    assert sum(map(len, recording.episodes)) == 21


COUNTS = counts(3, 50, seconds=900)
MARGIN_SECONDS = 1.0
LEAST_STEPS = 100
"""In the file before a recorder is killed."""


def forward_until_killed(told: Connection, upstream: str, path: str) -> None:
    """A proxy that records."""
    running = proxy(upstream, path)
    told.send(running.address)
    running.wait()


@contextlib.contextmanager
def process_of(target: Callable[..., None], *arguments: Any) -> Iterator[BaseProcess]:
    process = context.Process(target=target, args=arguments, daemon=True)
    process.start()
    try:
        yield process
    finally:
        end(process)


def local(steps: int) -> list[dm_env.TimeStep]:
    """The TimeSteps of the environment itself."""
    env = Catch(**SETTINGS)
    return [env.reset(), *(env.step(move(step)) for step in range(steps))]


def recorded_timesteps(path: Path) -> list[dm_env.TimeStep]:
    recording = read(path)
    assert not recording.is_complete
    return [step for episode in recording.episodes for step in episode.flat_timesteps]


def has_least(path: Path) -> bool:
    """Whether requests and answers of more steps than these have been written."""
    return len(entries(path)) > 2 * LEAST_STEPS + 10


class Progress:
    """How many steps were taken by when."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def note(self, steps: int) -> None:
        self._seen.append((time.monotonic(), steps))

    def check(self, count: int, killed: float, machine: Stopwatch, most: int) -> None:
        """Checks how many steps were recorded, of which the last moments may be missing."""
        moment = killed - MARGIN_SECONDS - machine.allowance
        least = max((steps for when, steps in self._seen if when <= moment), default=0)
        assert least <= count <= most


@COUNTS
def test_a_proxy_that_is_killed(server: Server, tmp_path: Path, count: int) -> None:
    """A client that records has the same recorder."""
    assert FLUSH_SECONDS < MARGIN_SECONDS
    moments = random.Random(count)
    longest = 0
    for index in range(count):
        path = tmp_path / f"{index}.mcap"
        seen: list[dm_env.TimeStep] = []
        progress = Progress()
        mine, its = context.Pipe()
        with process_of(forward_until_killed, its, server.address, str(path)) as process:
            address = mine.recv()
            env = dm_env_rpc_client.make(address, SETTINGS)
            seen.append(env.reset())
            while len(seen) < 2 * LEAST_STEPS:
                seen.append(env.step(move(len(seen) - 1)))
            assert settles(lambda: has_least(path))  # noqa: B023  # at once
            machine = Stopwatch()
            seconds = moments.uniform(0, 1.5 * MARGIN_SECONDS)
            killer = threading.Timer(seconds, process.kill)
            killer.start()
            killed = time.monotonic() + seconds
            with contextlib.suppress(ConnectionLostError):
                while True:
                    seen.append(env.step(move(len(seen) - 1)))
                    progress.note(len(seen))
            env.close()
            killer.join()
        mine.close()
        its.close()
        found = recorded_timesteps(path)
        # The proxy may have recorded an answer that the client did not get any more.
        progress.check(len(found), killed, machine, len(seen) + 1)
        assert_same(seen[: len(found)], found[: len(seen)])
        assert_same(local(len(found))[: len(found)], found)
        longest = max(longest, len(found))
    assert longest > LEAST_STEPS
    # The last one is replayed as far as it goes.
    with replay(path) as replayed, contextlib.suppress(ConnectionLostError):
        env = dm_env_rpc_client.make(replayed.address, SETTINGS)
        assert_same(found[:20], [env.reset(), *(env.step(move(step)) for step in range(19))])
        env.connection.close()
