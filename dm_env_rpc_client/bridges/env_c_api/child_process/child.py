"""The child process: runs a library and answers the calls of `ProcessRunner`.

It shares standard output and standard error with the parent, so the library prints there.

The first message is the pickle of how to open the library, as an array of bytes: the child trusts
its parent. Each further one is a call of a method of `LocalRunner`, `[name, *arguments]`. The
parent does not trust its child, so answers are checked JSON values: `{"result": ...}` or
`{"error": [class, args]}`, see `answers`.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from dm_env_rpc_client.bridges.env_c_api.child_process import answers
from dm_env_rpc_client.bridges.env_c_api.child_process.pipe import ChildPipe
from dm_env_rpc_client.bridges.env_c_api.declarations import layout
from dm_env_rpc_client.bridges.env_c_api.library import open_context
from dm_env_rpc_client.bridges.env_c_api.runner import LocalRunner
from dm_env_rpc_client.system import children
from dm_env_rpc_client.tensors.limits import DEFAULT, Limits

__all__ = ["answer_calls", "encode_opening", "main"]

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


def encode_opening(
    library: str, connect: str, version: str, launch_params: Any, *arguments: Any
) -> Any:
    """Returns the first message, whose answer is the description.

    Args:
      library: the path of the library.
      connect: the name of its connect function, or its offset.
      version: as for `layout`.
      launch_params: bytes or strings, as for `open_context`.
      *arguments: of `LocalRunner`, after the context.
    """
    opening = (library, connect, version, launch_params, *arguments)
    return np.frombuffer(pickle.dumps(opening), np.uint8)


def answer_calls(pipe: ChildPipe, limits: Limits = DEFAULT) -> None:
    """Answers calls until the pipe ends; then releases the environment."""
    runner: LocalRunner | None = None
    try:
        while True:
            call = pipe.receive()
            try:
                if runner is None:
                    runner = _open(limits, *pickle.loads(call))
                    result: Any = runner.description
                else:
                    name, *arguments = call
                    result = getattr(runner, name)(*arguments)
                pipe.send({"result": answers.encode(result)})
            except BrokenPipeError:
                raise
            except Exception as error:
                # Including an answer above the limits, which was not sent.
                pipe.send({"error": answers.encode_error(error)})
    except (EOFError, BrokenPipeError):
        pass  # The parent has closed the pipe.
    finally:
        if runner is not None:
            runner.close()


def _open(
    limits: Limits, library: str, connect: str, version: str, params: Any, *arguments: Any
) -> LocalRunner:
    return LocalRunner(open_context(layout(version), library, connect, params, limits), *arguments)
