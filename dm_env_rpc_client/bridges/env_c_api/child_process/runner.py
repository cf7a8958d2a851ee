"""Runs a library in a child process, so that its crash does not end this process."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from dm_env_rpc_client.bridges.env_c_api.child_process import answers, child
from dm_env_rpc_client.bridges.env_c_api.child_process.pipe import ChildPipe
from dm_env_rpc_client.bridges.env_c_api.description import Description
from dm_env_rpc_client.bridges.env_c_api.library import Connect, LaunchParams, Library
from dm_env_rpc_client.bridges.env_c_api.library_properties import PropertyAttributes
from dm_env_rpc_client.bridges.env_c_api.runner import Actions, Frame, Runner
from dm_env_rpc_client.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    ProtocolError,
    SpecError,
)
from dm_env_rpc_client.system import children
from dm_env_rpc_client.tensors.limits import DEFAULT, Limits

__all__ = ["ProcessRunner"]

T = TypeVar("T")

CLOSE_SECONDS = 5.0
"""How long the child may take to release the environment, and as long again to exit."""

# The child gets the module path of the parent, as the children of multiprocessing do.
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from dm_env_rpc_client.bridges.env_c_api.child_process.child import main; "
    "from dm_env_rpc_client.system.children import Parent; "
    "from dm_env_rpc_client.tensors.limits import Limits; "
    "limits = Limits(**json.loads(sys.argv[4])); "
    "main(Parent.from_start(), int(sys.argv[2]), int(sys.argv[3]), limits)"
)


class ProcessRunner(Runner):
    """Runs an environment in a child process.

    If the child dies, misses a deadline or sends an invalid answer, or if a call is
    interrupted, the child is killed and every later call fails with the first cause chained.

    Args:
      library: the path of the library.
      connect: the name of an exported function, or an offset such as "+0x1234".
      version: as for `layout`.
      settings: as for `LocalRunner`.
      launch_params: bytes, or a sequence of C strings; None for no such argument.
      observations: as for `LocalRunner`.
      shapes: as for `LocalRunner`.
      start_attempts: as for `LocalRunner`.
      request_timeout: seconds that each call may take; None for no limit.
      limits: what the child copies from the library's memory, and sends.

    Raises:
      SpecError: an argument is only valid in this process.
      DmEnvRpcClientError: as the calls.
    """

    def __init__(
        self,
        library: Library,
        connect: Connect,
        *,
        version: str,
        settings: Mapping[str, str],
        launch_params: LaunchParams,
        observations: Collection[str] | None,
        shapes: Mapping[str, Sequence[int]],
        start_attempts: int,
        request_timeout: float | None,
        limits: Limits = DEFAULT,
    ):
        if library is None or not isinstance(connect, str):
            raise SpecError(
                "a child process opens a library by its path and the name of a function or its "
                f"offset ('+0x1234'); got library={library!r}, connect={connect!r}"
            )
        self._path = os.path.abspath(library)
        self._timeout = request_timeout
        self._broken: Exception | None = None
        _check_portable(launch_params)
        self._process, self._pipe = _start_child(limits)
        # Runs when the runner is garbage-collected, and at the exit of the interpreter.
        self._end = weakref.finalize(self, _end_child, self._process, self._pipe)
        try:
            opening = child.encode_opening(
                self._path,
                connect,
                version,
                launch_params,
                dict(settings),
                None if observations is None else list(observations),
                dict(shapes),
                start_attempts,
            )
            self.description = self._ask(Description, "open", opening)
        except BaseException:
            self._end()
            raise

    def start(self, episode: int, seed: int) -> Frame:
        """See `Runner.start`."""
        return self._call(Frame, "start", episode, seed)

    def advance(self, actions: Actions, steps: int) -> Frame:
        """See `Runner.advance`."""
        return self._call(Frame, "advance", actions, steps)

    def read_property(self, key: str) -> str:
        """See `Runner.read_property`."""
        return self._call(str, "read_property", key)

    def write_property(self, key: str, value: str) -> None:
        """See `Runner.write_property`."""
        self._call(type(None), "write_property", key, value)

    def list_property(self, key: str) -> dict[str, PropertyAttributes]:
        """See `Runner.list_property`."""
        return self._call(dict[str, PropertyAttributes], "list_property", key)

    def close(self) -> None:
        """See `Runner.close`; raises nothing."""
        if self._end.alive and self._broken is None:
            try:
                self._pipe.send(["close"], CLOSE_SECONDS)
                self._pipe.receive(CLOSE_SECONDS)
            except (OSError, EOFError, ProtocolError):
                pass  # The child is ended below.
        self._end()

    def _call(self, type_: type[T], name: str, *arguments: Any) -> T:
        return self._ask(type_, name, [name, *arguments])

    def _ask(self, type_: type[T], name: str, message: Any) -> T:
        if self._broken is not None:
            raise ConnectionLostError(
                f"the child process that ran {self._path} has ended; make a new environment"
            ) from self._broken
        try:
            self._pipe.send(message, self._timeout)
            answer = self._pipe.receive(self._timeout)
            error = _error_of(answer)
            if error is None:
                result = answers.decode(type_, answer["result"])
                if isinstance(result, Frame):
                    answers.check_frame(result, self.description)
                return result
        except TimeoutError:
            failure: Exception = DeadlineExceededError(
                f"{self._path} did not return from {name} within {self._timeout} s; its child "
                "process was killed"
            )
        except (EOFError, BrokenPipeError):
            failure = ConnectionLostError(
                f"the child process that ran {self._path} died in {name}: {self._how_it_died()}; "
                "make a new environment"
            )
        except ProtocolError as garbage:
            failure = garbage
        except BaseException:
            # Interrupted: the next call would receive this call's answer.
            self._break(ConnectionLostError(f"a call of {name} was interrupted"))
            raise
        else:
            raise error
        self._break(failure)
        raise failure

    def _break(self, cause: Exception) -> None:
        self._broken = cause
        self._process.kill()
        self._end()

    def _how_it_died(self) -> str:
        try:
            code = self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            return "it closed its pipe"
        if code >= 0:
            return f"it exited with code {code}"
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"


def _error_of(answer: Any) -> Exception | None:
    if isinstance(answer, dict) and answer.keys() == {"error"}:
        return answers.decode_error(answer["error"])
    if isinstance(answer, dict) and answer.keys() == {"result"}:
        return None
    raise ProtocolError("the child process sent an invalid answer")


def _check_portable(launch_params: LaunchParams) -> None:
    texts = launch_params if isinstance(launch_params, list | tuple) else [launch_params or ""]
    if not all(isinstance(text, str | bytes) for text in texts):
        raise SpecError(
            f"launch_params is {launch_params!r}; for a child process it is the bytes of a struct "
            "without pointers, or a list of strings"
        )


def _start_child(limits: Limits) -> tuple[subprocess.Popen[bytes], ChildPipe]:
    their_reader, writer = os.pipe()
    reader, their_writer = os.pipe()
    try:
        process = children.start(
            [
                sys.executable,
                "-c",
                _PROGRAM,
                json.dumps([path for path in sys.path if isinstance(path, str)]),
                str(their_reader),
                str(their_writer),
                json.dumps(dataclasses.asdict(limits)),
            ],
            pass_fds=(their_reader, their_writer),
        )
    except BaseException:
        os.close(reader)
        os.close(writer)
        raise
    finally:
        os.close(their_reader)
        os.close(their_writer)
    return process, ChildPipe(reader, writer, limits)


def _end_child(process: subprocess.Popen[bytes], pipe: ChildPipe) -> None:
    """Closes the pipes, upon which the child exits; kills it if it does not."""
    pipe.close()
    children.end(process, CLOSE_SECONDS)
