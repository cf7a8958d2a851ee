"""A forked child gives up what is the parent's, all of it."""

from __future__ import annotations

import contextlib
import gc
import sys

from dm_env_rpc_client.system import forking
from dm_env_rpc_client.system.message_pipe import MessagePipe
from tests.reliability.processes.forking import Child


class Fails:
    """Something whose end in a child goes wrong."""

    def after_fork_in_child(self) -> None:
        raise RuntimeError("it cannot be given up")


def test_each_object_is_told_although_others_fail() -> None:
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
        gc.collect()  # Of earlier tests: a child that frees objects of grpcio waits forever.
        assert Child(told).result() == "20 closed; ['it cannot be given up']"
        assert all(pipe.fileno() != -1 for pipe in pipes)
