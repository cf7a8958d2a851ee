"""The one-file server: each environment has one thread for its life, whoever asks."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys

from dm_env_rpc_client import (
    connect,
    create_world,
    join_world,
    make,
)
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server as one_file
from tests.launch.standalone.interpreters import FILE, HERE
from tests.server.one_thread import Level


class Made(Level):
    """A level whose constructor counts, too."""

    made: list[Made] = []  # noqa: RUF012  # for the test that has it emptied

    def __init__(self) -> None:
        super().__init__()
        self.step_seconds = 0.002
        self.threads.note("constructor")
        self.made.append(self)


def test_two_that_have_joined_the_world_of_the_other() -> None:
    """Each thread waits for the other one, and does meanwhile what that asks."""
    Made.made.clear()
    with one_file.serve(Made) as server, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(server.address)) for _ in range(2)]
        names = [create_world(each) for each in connections]
        envs = [join_world(*pair) for pair in zip(connections, reversed(names), strict=True)]
        for _ in range(50):
            for future in [env.submit_step({"go": 1}) for env in envs]:
                future.result()
        for env in envs:
            env.close()
    assert len(Made.made) == 2
    for level in Made.made:
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
