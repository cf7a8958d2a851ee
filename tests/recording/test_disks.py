"""Disks that are full, slow or stuck: nothing is dropped, and what fails is told."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

import dm_env_rpc_client
from dm_env_rpc_client import dm_env_rpc_pb2
from dm_env_rpc_client.errors import ConnectionLostError, RecordingError
from dm_env_rpc_client.recording import Recorder, mcap_file, proxy
from dm_env_rpc_client.recording import recorder as recorders
from dm_env_rpc_client.server import Server
from tests.recording.sessions import entries, play
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
