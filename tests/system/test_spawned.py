"""Children of multiprocessing: what they are given, their pipe, and how they end."""

from __future__ import annotations

import os
import signal

import pytest

from dm_env_rpc_client.system import children
from dm_env_rpc_client.system.message_pipe import MessagePipe
from dm_env_rpc_client.system.spawned import SpawnedChild

pytestmark = pytest.mark.timeout(60)


def tell_and_wait(pipe: MessagePipe, what: bytes) -> None:
    pipe.send(what, b" ", str(os.getpid()).encode())
    os._exit(len(pipe.receive().message))


def signal_itself(pipe: MessagePipe) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(os.getpid(), number)
    pipe.send(b"goes on")


def test_a_child_has_its_arguments_and_a_pipe() -> None:
    child = SpawnedChild(tell_and_wait, b"given", name="told")
    assert child.pipe.receive().message == f"given {child.pid}".encode()
    was_alive = child.is_alive
    child.pipe.send(b"xyz")
    assert child.wait() == 3
    assert (was_alive, child.is_alive) == (True, False)
    with pytest.raises(EOFError):
        child.pipe.receive()
    child.close()
    assert child.pipe.fileno() == -1


def test_signals_to_the_group_are_left_to_the_parent() -> None:
    child = SpawnedChild(signal_itself, name="signalled")
    assert child.pipe.receive().message == b"goes on"
    assert child.wait() == 0
    child.close()


def test_what_cannot_be_pickled_leaves_no_pipe() -> None:
    before = len(os.listdir("/proc/self/fd"))
    errors = []  # Their tracebacks keep what is not closed.
    for _ in range(8):
        with pytest.raises(Exception, match=r"pickle|local") as raised:
            SpawnedChild(tell_and_wait, lambda: None, name="unpicklable")
        errors.append(raised)
    # multiprocessing's own process has one pipe.
    assert len(os.listdir("/proc/self/fd")) <= before + 2 < before + len(errors)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-9, "was ended by SIGKILL"),
        (-40, "was ended by signal 40"),
    ],
)
def test_how_it_ended(code: int, text: str) -> None:
    assert children.how_it_ended(code) == text
