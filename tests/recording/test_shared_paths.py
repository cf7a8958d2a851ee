"""Row 49: recorders on one path, whose files are renamed, replaced or removed, or the disk is full.

Nothing that a recorder did not write itself is overwritten, and the next recording works.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dm_env_rpc_client
from dm_env_rpc_client.errors import ConnectionLostError, RecordingError
from dm_env_rpc_client.recording import Recorder, read
from dm_env_rpc_client.server import Server
from tests.recording.sessions import SETTINGS, move, play
from tests.reliability.recording import Seen
from tests.support.scripted import settles

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
def disk(tmp_path: Path) -> Iterator[Path]:
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
    server: Server, disk: Path, seen: Seen
) -> None:
    path, ballast = disk / "run.mcap", disk / "ballast"
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
