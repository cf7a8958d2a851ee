"""The one-file server: each environment has one thread for its life, whoever asks."""

from __future__ import annotations

import concurrent.futures
import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dm_env_rpc_client import (
    connect,
    create_world,
    destroy_world,
    join_world,
    make,
    reset_world,
)
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server as one_file
from tests.launch.standalone.interpreters import FILE, HERE
from tests.server.one_thread import Level
from tests.support.scripted import settles


class Made(Level):
    """A level whose constructor counts, too."""

    made: list[Made] = []  # noqa: RUF012  # for the test that has it emptied

    def __init__(self, seconds: float = 0.0, gain: int = 1) -> None:
        super().__init__()
        self.step_seconds = seconds
        self.threads.note("constructor")
        self.made.append(self)


@pytest.fixture(autouse=True)
def made() -> Iterator[list[Made]]:
    Made.made.clear()
    yield Made.made
    Made.made.clear()


@contextlib.contextmanager
def serving(thread: str | None) -> Iterator[tuple[Any, int | None]]:
    """A server, and the thread that waits."""
    server = one_file.serve(Made, idle_world_seconds=0.0, thread=thread)
    waiter = threading.Thread(target=server.wait)
    waiter.start()
    try:
        yield server, waiter.ident
    finally:
        server.stop(0.0)
        waiter.join(30)
        assert not waiter.is_alive()


@pytest.mark.parametrize("thread", [None, "main"])
@pytest.mark.parametrize("seconds", [0.0, 0.002])
def test_whoever_asks(thread: str | None, seconds: float, made: list[Made]) -> None:
    settings = {"seconds": seconds}
    with serving(thread) as (server, waiter):
        with make(server.address, settings) as env, make(server.address, settings) as second:
            for _ in range(5):
                env.step({"go": 1})
                second.step({"go": 1})
            assert PropertiesExtension(env.connection)["steps"] == 4
            assert env.reset({"gain": 2}).first()
        with connect(server.address) as creator:
            name = create_world(creator, settings)
            # Others join it, reset it and destroy it, while its thread waits for its own client.
            with connect(server.address) as other:
                env = join_world(other, name)
                for _ in range(5):
                    env.step({"go": 1})
                with concurrent.futures.ThreadPoolExecutor() as executor:
                    reset = executor.submit(reset_world, creator, name, settings)
                    while not env.step({"go": 1}).last():
                        pass
                    reset.result()
                assert env.step({"go": 1}).first()
                assert env.step({"go": 1}).reward == 1.0
                env.close()
            with connect(server.address) as other:
                destroy_world(other, name)
            assert settles(lambda: not server.worlds)
            create_world(creator, settings)
        assert settles(lambda: not server.worlds)  # It was idle.
        last = make(server.address, settings)
        last.step({"go": 1})
        server.stop(0.0)
        with contextlib.suppress(ConnectionError):
            last.close()
        assert not server.errors
    assert settles(lambda: all(level.threads.closed == 1 for level in made))
    assert len(made) == 6
    for level in made:
        one = level.threads.the_one("constructor", "close")
        assert one == waiter if thread else one != threading.get_ident()
    assert settles(lambda: not [
        each for each in threading.enumerate() if each.name.endswith("(_answer)")
    ])  # fmt: skip


def test_two_that_have_joined_the_world_of_the_other(made: list[Made]) -> None:
    """Each thread waits for the other one, and does meanwhile what that asks."""
    with serving(None) as (server, _), contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(server.address)) for _ in range(2)]
        names = [create_world(each, {"seconds": 0.002}) for each in connections]
        envs = [join_world(*pair) for pair in zip(connections, reversed(names), strict=True)]
        for _ in range(50):
            for future in [env.submit_step({"go": 1}) for env in envs]:
                future.result()
        for env in envs:
            env.close()
    for level in made:
        level.threads.the_one("constructor", "step", "close")


def test_the_command_has_them_in_its_main_thread() -> None:
    command = [sys.executable, str(FILE), "hosted_threads:make", "--address", "localhost:0"]
    process = subprocess.Popen(
        [*command, "--thread", "main"], stdout=subprocess.PIPE, text=True, cwd=HERE
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().split()[-1]
        with make(address) as env:
            assert env.reset().observation["is_main"]
            assert env.step({}).observation["is_main"]
        with make(address) as env:
            env.reset()
            process.send_signal(signal.SIGTERM)
            assert process.stdout.read() == "closed in the main thread: True\n" * 2
    finally:
        process.terminate()
        assert process.wait(30) == 0
        process.stdout.close()


def test_another_thread_is_refused() -> None:
    with pytest.raises(ValueError, match="invalid thread 'other'; expected 'main'"):
        one_file.serve(Made, thread="other")
