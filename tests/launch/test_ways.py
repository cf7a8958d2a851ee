"""Ways into another process: each answers, says how it ended, and ends with what has started it."""

from __future__ import annotations

import contextlib
import gc

import pytest

from dm_env_rpc_client import DmEnvRpcClientError
from tests.launch.processes import is_alive
from tests.launch.ways import WAYS, descendants
from tests.support.programs import run_python
from tests.support.scripted import settles

TOLD = {
    "gym-socket": "ended the connection",  # The protocol has no words for more.
    "EnvCApi": "it exited with code 3",
    "worker process": "the process hosting this stream's world has ended",
}
"""What the client is told of the end of the process, where it is not its exit code."""

each_way = pytest.mark.parametrize("way", WAYS)


@each_way
def test_it_answers_and_ends_with_its_environment(way: str) -> None:
    before = descendants()
    with contextlib.ExitStack() as stack:
        env, action = WAYS[way](stack, False)
        assert env.reset().first()
        assert env.step(action).mid()
        assert descendants() > before
    assert settles(lambda: descendants() <= before, 20)


@each_way
def test_the_end_of_the_process_is_told(way: str) -> None:
    before = descendants()
    with contextlib.ExitStack() as stack:
        env, action = WAYS[way](stack, True)
        env.reset()
        with pytest.raises(DmEnvRpcClientError, match=TOLD.get(way, "exit code 3")):
            env.step(action)
    assert settles(lambda: descendants() <= before, 20)


@each_way
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_is_forgotten_ends(way: str) -> None:
    before = descendants()
    stack = contextlib.ExitStack()
    env, _ = WAYS[way](stack, False)
    env.reset()
    assert descendants() > before
    stack.pop_all()
    del env, stack
    gc.collect()
    assert settles(lambda: descendants() <= before, 20)


PROGRAM = """
import contextlib, os, sys
from tests.launch.ways import WAYS, descendants
if __name__ == "__main__":
    stack = contextlib.ExitStack()
    env, _ = WAYS[sys.argv[1]](stack, False)
    env.reset()
    print(*descendants(), flush=True)
    exec(sys.argv[2])
"""
ENDS = {"": 0, "os.kill(os.getpid(), 9)": -9}
MORE_ENDS = {"os._exit(0)": 0, "os.kill(os.getpid(), 15)": -15, "1 / 0": 1}


@pytest.mark.parametrize(
    ("way", "end", "code"),
    [
        *((way, *end) for way in WAYS for end in ENDS.items()),
        *(("python:", *end) for end in MORE_ENDS.items()),
    ],
)
def test_nothing_outlives_the_program_that_started_it(way: str, end: str, code: int) -> None:
    finished = run_python("-c", PROGRAM, way, end, code=code)
    assert ("ZeroDivisionError" in finished.stderr) if "/" in end else finished.stderr == ""
    pids = [*map(int, finished.stdout.split())]
    assert pids
    assert settles(lambda: not any(map(is_alive, pids)), 20)
