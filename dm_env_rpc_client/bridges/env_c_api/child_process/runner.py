"""Run a library in a child process, so that a crash of the library does not end the parent.

This module contains the code of both processes. The child shares the parent's standard output and
standard error, so the library's output appears there.

The child first reports that it has started. The first message to the child is a pickled `Opening`,
sent as an array of bytes; unpickling it is safe because the child trusts its parent. Every other
message to the child calls a method of `LocalRunner`, in the form `[name, *arguments]`. The parent
does not trust its child, so answers are JSON values, which the parent validates; see `pipe.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import weakref
from typing import Any, TypeVar

import numpy as np

from dm_env_rpc_client.bridges.env_c_api.child_process import pipe as answers
from dm_env_rpc_client.bridges.env_c_api.child_process.pipe import ChildPipe
from dm_env_rpc_client.bridges.env_c_api.description import Description
from dm_env_rpc_client.bridges.env_c_api.library import Opening
from dm_env_rpc_client.bridges.env_c_api.library_properties import PropertyAttributes
from dm_env_rpc_client.bridges.env_c_api.runner import Actions, Frame, LocalRunner
from dm_env_rpc_client.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvRpcClientError,
    ProtocolError,
    SpecError,
)
from dm_env_rpc_client.system import children
from dm_env_rpc_client.tensors.memory_limits import Limits

ORPHAN_SECONDS = 5.0
"""The time, in seconds, that an orphaned child has to finish a call and release the library."""


def main(parent: children.Parent, reader: int, writer: int) -> None:
    """Answer calls until the parent closes its ends of the pipes.

    Args:
      parent: the parent process. When it ends, the child ends too, even if the library does not
        return from a call.
      reader: descriptor of the pipe from which calls are read.
      writer: descriptor of the pipe to which answers are written.
    """
    children.leave_signals_to_parent()
    children.exit_with(parent, ORPHAN_SECONDS)
    pipe = ChildPipe(reader, writer)
    with contextlib.suppress(BrokenPipeError):  # The parent has ended; the next read shows that.
        pipe.send({"result": answers.encode(None)})
    answer_calls(pipe)


def encode_opening(opening: Opening) -> Any:
    """Return the first message, which the child answers with a description of the environment."""
    return np.frombuffer(pickle.dumps(opening), np.uint8)


def answer_calls(pipe: ChildPipe) -> None:
    """Answer calls until the pipe is closed, then release the environment."""
    runner: LocalRunner | None = None
    try:
        while True:
            call = pipe.receive()
            try:
                if runner is None:
                    opening = pickle.loads(call)
                    pipe.limits = opening.limits
                    runner = LocalRunner(opening)
                    result: Any = runner.description
                else:
                    name, *arguments = call
                    result = getattr(runner, name)(*arguments)
                pipe.send({"result": answers.encode(result)})
            except BrokenPipeError:
                raise
            except Exception as error:
                # Reached also by an answer above the limits, which was not sent.
                pipe.send({"error": answers.encode_error(error)})
    except (EOFError, BrokenPipeError):
        pass  # The parent has closed the pipe.
    finally:
        if runner is not None:
            runner.close()


T = TypeVar("T")

START_SECONDS = 60.0
"""The time limit, in seconds, for the child's interpreter to start, not counting library calls."""

CLOSE_SECONDS = 5.0
"""The time limit, in seconds, for releasing the environment, and likewise for the child's exit."""

# The child needs the module path of the parent, as children of multiprocessing do.
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from dm_env_rpc_client.bridges.env_c_api.child_process.runner import main; "
    "from dm_env_rpc_client.system.children import Parent; "
    "main(Parent.from_start(), int(sys.argv[2]), int(sys.argv[3]))"
)


class ProcessRunner:
    """A runner for an environment in a child process, with the same methods as `LocalRunner`.

    If the child dies, misses a deadline or sends an invalid answer, or if a call is
    interrupted, the child is killed and every later call fails with the first cause chained.

    Args:
      opening: the library and its environment.
      request_timeout: time limit for each call, in seconds; None for no limit.

    Attributes:
      description: the environment's description.

    Raises:
      SpecError: an argument cannot be used in a child process.
      DmEnvRpcClientError: the child failed, or its `LocalRunner` raised an error.
    """

    def __init__(self, opening: Opening, request_timeout: float | None):
        library, connect, params = opening.library, opening.connect, opening.launch_params
        if library is None or not isinstance(connect, str):
            raise SpecError(
                "a child process needs the path of a library and the name or offset ('+0x1234') "
                f"of a function; got library={library!r}, connect={connect!r}"
            )
        texts = params if isinstance(params, list | tuple) else [params or ""]
        if not all(isinstance(text, str | bytes) for text in texts):
            raise SpecError(
                f"launch_params is {params!r}; for a child process, it must be the bytes of a "
                "struct without pointers, or a list of strings"
            )
        self._path = os.path.abspath(library)
        self._timeout = request_timeout
        self._broken: Exception | None = None
        self._process, self._pipe = _start_child(opening.limits)
        # Runs when the runner is garbage-collected, and at the exit of the interpreter.
        self._end = weakref.finalize(self, _end_child, self._process, self._pipe)
        try:
            self._hear(type(None), "its start", START_SECONDS)
            message = encode_opening(opening._replace(library=self._path))
            self.description = self._hear(Description, "open", request_timeout, message)
        except BaseException:
            self._end()
            raise

    def start(self, episode: int, seed: int) -> Frame:
        """Start an episode."""
        return self._call(Frame, "start", episode, seed)

    def advance(self, actions: Actions, steps: int) -> Frame:
        """Set actions and advance the environment."""
        return self._call(Frame, "advance", actions, steps)

    def read_property(self, key: str) -> str:
        """Read a property."""
        return self._call(str, "read_property", key)

    def write_property(self, key: str, value: str) -> None:
        """Write a property."""
        self._call(type(None), "write_property", key, value)

    def list_property(self, key: str) -> dict[str, PropertyAttributes]:
        """List the direct children of a property."""
        return self._call(dict[str, PropertyAttributes], "list_property", key)

    def close(self) -> None:
        """Release the environment and end the child process; repeated calls have no effect."""
        if self._end.alive and self._broken is None:
            try:
                self._pipe.send(["close"], CLOSE_SECONDS)
                self._pipe.receive(CLOSE_SECONDS)
            except (OSError, EOFError, ProtocolError):
                pass  # The child is ended below.
        self._end()

    def _call(self, type_: type[T], name: str, *arguments: Any) -> T:
        if self._broken is not None:
            raise ConnectionLostError(
                f"the child process that ran {self._path} has ended; make a new environment"
            ) from self._broken
        return self._hear(type_, name, self._timeout, [name, *arguments])

    def _hear(self, type_: type[T], name: str, timeout: float | None, message: Any = None) -> T:
        """Send the given message, if any, to the child, and return the child's next message."""
        try:
            if message is not None:
                self._pipe.send(message, timeout)
            result = answers.decode_answer(type_, self._pipe.receive(timeout))
            if isinstance(result, Frame):
                answers.check_frame(result, self.description)
        except TimeoutError:
            self._broken = DeadlineExceededError(
                f"{self._path} did not return from {name} within {timeout} s; its child "
                "process was killed"
            )
        except (EOFError, BrokenPipeError):
            self._broken = ConnectionLostError(
                f"the child process that ran {self._path} died in {name}: {self._how_it_died()}; "
                "make a new environment"
            )
        except ProtocolError as invalid:
            self._broken = invalid
        except BaseException:
            # Interrupted: the next call would receive this call's answer.
            self._broken = ConnectionLostError(f"a call of {name} was interrupted")
            raise
        finally:
            if self._broken is not None:
                self._process.kill()
                self._end()
        if self._broken is not None:
            raise self._broken
        if isinstance(result, DmEnvRpcClientError):
            raise result
        return result

    def _how_it_died(self) -> str:
        try:
            code = self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            return "it closed its pipe"
        if code >= 0:
            return f"it exited with code {code}"
        names = {each.value: each.name for each in signal.Signals}
        return f"killed by {names.get(-code, f'signal {-code}')}"


def _start_child(limits: Limits) -> tuple[subprocess.Popen[bytes], ChildPipe]:
    their_reader, writer = os.pipe()
    reader, their_writer = os.pipe()
    pipe = ChildPipe(reader, writer, limits)
    paths = json.dumps([path for path in sys.path if isinstance(path, str)])
    try:
        theirs = (their_reader, their_writer)
        process = children.start(
            [sys.executable, "-c", _PROGRAM, paths, *map(str, theirs)], pass_fds=theirs
        )
    except BaseException:
        pipe.close()
        raise
    finally:
        os.close(their_reader)
        os.close(their_writer)
    return process, pipe


def _end_child(process: subprocess.Popen[bytes], pipe: ChildPipe) -> None:
    """Close the pipes so that the child process exits, and kill it if it does not."""
    pipe.close()
    children.end(process, CLOSE_SECONDS)
