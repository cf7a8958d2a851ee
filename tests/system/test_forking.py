"""A forked child gives up what is the parent's, all of it."""

from __future__ import annotations

import contextlib
import gc
import sys

from dm_env_rpc_client.system import forking
from dm_env_rpc_client.system.message_pipe import MessagePipe
from tests.reliability.processes.forking import Child
from tests.support.programs import run_python


class Fails:
    """Something whose end in a child goes wrong."""

    def after_fork_in_child(self) -> None:
        raise RuntimeError("it cannot be given up")


def test_each_object_is_told_although_others_fail() -> None:
    gc.collect()
    reported: list[str] = []

    def told() -> str:
        return f"{sum(pipe.fileno() == -1 for pipe in pipes)} closed; {reported}"

    before = sys.unraisablehook
    with contextlib.ExitStack() as stack:
        # In no particular order, so that some come after one that fails.
        pipes = [end for _ in range(10) for end in MessagePipe.pair()]
        failing = [Fails() for _ in range(10)]
        for pipe in pipes:
            stack.callback(pipe.close)
        for each in failing:
            forking.register(each, Fails.after_fork_in_child)
        stack.callback(setattr, sys, "unraisablehook", before)
        sys.unraisablehook = lambda report: reported.append(str(report.exc_value))
        assert Child(told).result() == "20 closed; ['it cannot be given up']"
        assert all(pipe.fileno() != -1 for pipe in pipes)


_GARBAGE = """
import functools, gc, os
gc.set_threshold(0)  # Never; in the child at the next object that Python makes.
os.register_at_fork(after_in_child=functools.partial(gc.set_threshold, 1))
from dm_env_rpc_client.system import forking

class Garbage:
    def __del__(self):
        os.write(1, b"freed ")

def give_up(garbage):
    os.write(1, b"given up ")

garbage = Garbage()
garbage.itself = garbage
forking.register(garbage, give_up)
del garbage
child = os.fork()
if not child:
    [[] for _ in range(10_000)]  # Something is collected again.
    os._exit(0)
os.waitpid(child, 0)
print(gc.isenabled(), flush=True)
os._exit(0)
"""


def test_garbage_is_given_up_before_it_is_freed() -> None:
    assert run_python("-c", _GARBAGE).stdout == "given up freed True\n"
