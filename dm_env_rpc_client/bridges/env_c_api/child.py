"""The child process: runs a library and answers the calls of `ProcessRunner`.

It shares standard output and standard error with the parent, so the library prints there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dm_env_rpc_client.bridges.env_c_api import child_calls
from dm_env_rpc_client.bridges.env_c_api.child_pipe import ChildPipe
from dm_env_rpc_client.bridges.env_c_api.declarations import layout
from dm_env_rpc_client.bridges.env_c_api.library import open_context
from dm_env_rpc_client.bridges.env_c_api.runner import Actions, LocalRunner
from dm_env_rpc_client.runtime import children
from dm_env_rpc_client.tensors.limits import DEFAULT, Limits

__all__ = ["answer_calls", "main"]

ORPHAN_SECONDS = 5.0
"""How long the library may take to return and be released after the parent has ended."""


def main(parent: children.Parent, reader: int, writer: int, limits: Limits) -> None:
    """Answers calls until the parent closes its ends of the pipes.

    Args:
      parent: the parent process. When it ends, this one does, even if the library does not
        return from a call.
      reader: descriptor of the pipe with the calls.
      writer: descriptor of the pipe for the answers.
      limits: what is copied from the library's memory.
    """
    children.leave_signals_to_parent()
    children.exit_with(parent, ORPHAN_SECONDS)
    answer_calls(ChildPipe(reader, writer, limits), limits)


def answer_calls(pipe: ChildPipe, limits: Limits = DEFAULT) -> None:
    """Answers calls until the pipe ends; then releases the environment."""
    calls = _Calls(limits)
    try:
        while True:
            name, *arguments = pipe.receive()
            try:
                pipe.send({"result": calls.by_name[name](*arguments)})
            except BrokenPipeError:
                raise
            except Exception as error:
                # Including an answer above the limits, which was not sent.
                pipe.send({"error": child_calls.encode_error(error)})
    except (EOFError, BrokenPipeError):
        pass  # The parent has closed the pipe.
    finally:
        calls.close()


class _Calls:
    """The calls by name, and the one environment of the process."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._runner: LocalRunner | None = None
        self.by_name: dict[str, Callable[..., Any]] = {
            "open": self._open,
            "start": lambda *args: child_calls.encode_frame(self._get().start(*args)),
            "advance": self._advance,
            "read_property": lambda key: self._get().read_property(key),
            "write_property": lambda key, value: self._get().write_property(key, value),
            "list_property": lambda key: child_calls.encode_properties(
                self._get().list_property(key)
            ),
            "close": self.close,
        }

    def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()

    def _open(
        self,
        library: str,
        connect: str,
        version: str,
        settings: list[list[str]],
        launch_params: Any,
        observations: list[str] | None,
        shapes: list[Any],
        start_attempts: int,
    ) -> Any:
        params: Any = None
        if isinstance(launch_params, np.ndarray):
            params = launch_params.tobytes()
        elif launch_params is not None:
            params = [text.tobytes() for text in launch_params]
        context = open_context(layout(version), library, connect, params, self._limits)
        texts = {key: value for key, value in settings}  # noqa: C416  # pairs are lists here
        self._runner = LocalRunner(context, texts, observations, dict(shapes), start_attempts)
        return child_calls.encode_description(self._runner.description)

    def _advance(self, discrete: Any, continuous: Any, texts: Any, steps: int) -> Any:
        frame = self._get().advance(Actions(discrete, continuous, texts), steps)
        return child_calls.encode_frame(frame)

    def _get(self) -> LocalRunner:
        assert self._runner is not None, "the parent opens the library first"
        return self._runner
