"""Row 49: disks that are full, slow or stuck, and files that others rename, replace or remove.

Nothing is dropped, nothing of others is overwritten, and what fails is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

import dm_env_rpc_client
from dm_env_rpc_client import dm_env_rpc_pb2
from dm_env_rpc_client.errors import ConnectionLostError, RecordingError
from dm_env_rpc_client.recording import Recorder, mcap_file, proxy, read
from dm_env_rpc_client.recording import recorder as recorders
from dm_env_rpc_client.server import Server
from tests.recording.sessions import SETTINGS, entries, move, play
from tests.reliability.recording import Seen
from tests.support.scripted import descriptor_count, settles

Disk: TypeAlias = Callable[[Callable[[bytes], object]], None]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Has something happen before each write to a recording; the disk may raise an OSError."""
    write = mcap_file._Output.write

    def behave(before: Callable[[bytes], object]) -> None:
        def spoiled(self: mcap_file._Output, data: bytes) -> None:
            before(data)
            write(self, data)

        monkeypatch.setattr(mcap_file._Output, "write", spoiled)

    return behave


def be_full(data: bytes) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("is_of_proxy", [False, True], ids=["client", "proxy"])
def test_a_disk_that_is_full_ends_the_connection(
    server: Server, path: Path, disk: Disk, is_of_proxy: bool
) -> None:
    with contextlib.ExitStack() as stack:
        address = server.address
        if is_of_proxy:
            address = stack.enter_context(proxy(address, path)).address
        record = None if is_of_proxy else path
        connection = stack.enter_context(dm_env_rpc_client.connect(address, record=record))
        connection.send(dm_env_rpc_pb2.LeaveWorldRequest())
        disk(be_full)

        def go_on() -> bool:
            connection.send(dm_env_rpc_pb2.CreateWorldRequest())
            return False

        with pytest.raises(
            ConnectionLostError, match=r"cannot write the recording.*No space"
        ) as it:
            settles(go_on, 30)
        assert is_of_proxy or isinstance(it.value.__cause__, RecordingError)
        assert not connection.is_usable


def test_a_disk_that_is_full_at_the_end_is_logged_and_leaves_no_descriptor(
    server: Server, path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    before = descriptor_count()
    disk(lambda data: be_full(data) if data.endswith(b"MCAP0\r\n") else None)
    play(server.address, 5, record=path)
    gc.collect()
    assert "cannot be written: [Errno 28] No space left" in caplog.text
    assert settles(lambda: descriptor_count() <= before)
    # All that was recorded is there; only the end is missing.
    assert len(entries(path)) == 20


def step_on(address: str, recorder: Recorder, steps: int) -> None:
    play(address, steps, record=recorder)


async def _step_on(address: str, recorder: Recorder, steps: int) -> None:
    env = await dm_env_rpc_client.make_async(address, record=recorder)
    try:
        for _ in range(steps):
            await env.step({"paddle": 1})
    finally:
        await env.close()


def step_on_async(address: str, recorder: Recorder, steps: int) -> None:
    asyncio.run(_step_on(address, recorder, steps))


EITHER = pytest.mark.parametrize("step", [step_on, step_on_async])


@EITHER
def test_a_disk_that_takes_nothing_ends_the_connection(
    server: Server,
    path: Path,
    disk: Disk,
    monkeypatch: pytest.MonkeyPatch,
    step: Callable[[str, Recorder, int], None],
) -> None:
    takes_again = threading.Event()
    monkeypatch.setattr(recorders, "MAX_WAITING_BYTES", 2_000)
    monkeypatch.setattr(recorders, "_STALLED_SECONDS", 0.2)
    with Recorder(path) as recorder:
        disk(lambda _: takes_again.wait(60))
        try:
            with pytest.raises(ConnectionLostError, match=r"nothing could be written for 0\.2 s"):
                step(server.address, recorder, 10_000)
        finally:
            takes_again.set()


@EITHER
def test_a_recording_that_was_idle_for_long_waits_for_the_disk_as_any_other(
    server: Server,
    path: Path,
    disk: Disk,
    monkeypatch: pytest.MonkeyPatch,
    step: Callable[[str, Recorder, int], None],
) -> None:
    takes_again = threading.Event()
    monkeypatch.setattr(recorders, "MAX_WAITING_BYTES", 2_000)
    with Recorder(path) as recorder:
        writer = recorder._writer

        def be_stuck(_: bytes) -> None:
            # As if nothing had been written for much longer than the minute that a disk is given.
            if not takes_again.is_set():
                writer._progressed = time.monotonic() - 10_000.0
            takes_again.wait(60)

        disk(be_stuck)
        stepping = threading.Thread(target=step, args=(server.address, recorder, 200))
        stepping.start()
        try:
            assert settles(lambda: writer._waiting_bytes > 2_000 or writer.failure is not None)
            time.sleep(0.1)  # It waits for the disk meanwhile.
        finally:
            takes_again.set()
            stepping.join(60)
        assert writer.failure is None
    assert len(entries(path)) >= 400


def test_a_slow_disk_delays_coroutines_that_record_and_no_others(
    server: Server, path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = 0
    during_writes = []
    is_over = threading.Event()

    def be_slow(data: bytes) -> None:
        before = ticks
        time.sleep(0.3)  # So slow is the disk.
        if before:
            # However busy the machine is, it lasts until the loop runs, if it does.
            during_writes.append(settles(lambda: is_over.is_set() or ticks > before + 1))

    async def run() -> None:
        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.005)  # How often it ticks.

        ticking = asyncio.create_task(tick())
        await _step_on(server.address, recorder, 21)
        is_over.set()
        ticking.cancel()

    with Recorder(path) as recorder:
        monkeypatch.setattr(recorders, "MAX_WAITING_BYTES", 1_000)
        disk(be_slow)
        asyncio.run(run())
    assert len(entries(recorder.path)) == 50
    # A coroutine that waits for the disk lets the event loop run.
    assert len(during_writes) >= 2
    assert all(during_writes)


pytestmark = pytest.mark.row(49)

STEPS = 5


def is_whole(path: Path, connections: int = 1) -> bool:
    found = read(path)
    assert sum(map(len, found.episodes)) == (STEPS + 1) * connections
    return found.is_complete


def content_of(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def rename(path: Path) -> Path:
    return path.rename(path.with_name("renamed.mcap"))


def test_three_recorders_on_one_path(server: Server, path: Path, seen: Seen) -> None:
    with Recorder(path) as first:
        play(server.address, STEPS, record=first)
        renamed = rename(path)
        with Recorder(path) as second:
            play(server.address, STEPS, record=second)
            before = path.read_bytes()
            with pytest.raises(RecordingError, match="the file exists"):
                Recorder(path)
            # The file of the first was renamed, so the second's has its name.
            with pytest.raises(RecordingError, match="is no longer the file"):
                play(server.address, STEPS, record=first)
            assert path.read_bytes() == before
            play(server.address, STEPS, record=second)
    assert is_whole(path, 2)
    assert is_whole(renamed)
    seen(overwritten=0)


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def anew(path: Path, make: Callable[[], object]) -> None:
    path.unlink()
    make()


HARM: dict[str, Callable[[Path, Path], object]] = {
    "replaced": lambda path, other: anew(path, lambda: shutil.copy(other, path)),
    "overwritten": lambda path, other: path.write_bytes(other.read_bytes()),
    "appended to": lambda path, _: rewrite(path, lambda content: content + b"appended"),
    "changed": lambda path, _: rewrite(path, lambda content: content[:-20] + b"!" + content[-19:]),
    "a FIFO": lambda path, _: anew(path, lambda: os.mkfifo(path)),
    "a folder": lambda path, _: anew(path, path.mkdir),
}
"""What others do with a file."""


def open_files(path: Path) -> int:
    """How many descriptors of this process are of a file."""
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # Another thread has closed it.
            count += os.readlink(entry) == str(path)
    return count


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
def test_a_finished_file_that_is_another_one_is_left_as_it_is(
    server: Server, path: Path, harm: Callable[[Path, Path], object], seen: Seen
) -> None:
    other = path.with_name("other.mcap")
    # Recordings of the same steps have about the same size, and a copy may get the same inode.
    play(server.address, STEPS, record=other)
    with Recorder(path) as recorder:
        play(server.address, STEPS, record=recorder)
        harm(path, other)
        before, descriptors = content_of(path), open_files(path)
        with pytest.raises(
            RecordingError, match=r"cannot record to .*(no longer the file|Is a dir)"
        ):
            play(server.address, STEPS, record=recorder)
        assert content_of(path) == before
        assert open_files(path) == descriptors
    assert is_whole(other)
    assert content_of(path) == before
    seen(overwritten=0)


def test_a_finished_file_that_was_moved_and_linked_goes_on(server: Server, path: Path) -> None:
    with Recorder(path) as recorder:
        play(server.address, STEPS, record=recorder)
        path.symlink_to(rename(path))
        play(server.address, STEPS, record=recorder)
    assert is_whole(path, 2)


@pytest.mark.parametrize("gone", [rename, Path.unlink])
def test_a_path_whose_file_is_gone_gets_a_new_one(
    server: Server, path: Path, gone: Callable[[Path], Path | None], seen: Seen
) -> None:
    with dm_env_rpc_client.make(server.address, SETTINGS, record=path) as env:
        env.reset()
        moved = gone(path)
        play(server.address, STEPS, record=path)
        for step in range(STEPS):
            env.step(move(step))
    assert is_whole(path)
    if moved is not None:
        assert is_whole(moved)
    seen(overwritten=0)


@pytest.mark.parametrize("takes_place", [True, False])
def test_a_file_without_connections_is_removed_if_it_is_the_recorders(
    path: Path, takes_place: bool
) -> None:
    recorder = Recorder(path)
    if takes_place:
        path.unlink()
        path.write_bytes(b"something else")
    recorder.discard()
    assert path.exists() == takes_place


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    mounting = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounting.returncode:
        pytest.skip(f"needs the right to mount a small disk: {mounting.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_was_full_takes_the_next_recording(
    server: Server, small_disk: Path, seen: Seen
) -> None:
    path, ballast = small_disk / "run.mcap", small_disk / "ballast"
    left: list[dm_env_rpc_client.DmEnvAdaptor] = []
    for _ in range(3):
        env = dm_env_rpc_client.make(server.address, SETTINGS, record=path)
        left.append(env)  # Whoever keeps a closed environment delays nobody.
        env.reset()
        with pytest.raises(OSError, match="No space"):
            ballast.write_bytes(bytes(2 << 20))

        def step_on(env: dm_env_rpc_client.DmEnvAdaptor = env) -> None:
            for step in range(1_000_000):
                env.step(move(step))

        with pytest.raises(ConnectionLostError, match=r"cannot write the recording.*No space"):
            step_on()
        env.close()
        # What was written before is readable, and is not taken for all.
        assert not read(path).is_complete
        with pytest.raises(RecordingError, match="the file exists"):
            play(server.address, STEPS, record=path)
        path.unlink()
        ballast.unlink()
        play(server.address, STEPS, record=path)
        assert settles(lambda: is_whole(path))
        path.unlink()
    seen(full_disks=3, overwritten=0)
