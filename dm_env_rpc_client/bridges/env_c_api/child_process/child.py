"""The child process: runs a library and answers the calls of `ProcessRunner`.

It shares standard output and standard error with the parent, so the library prints there.

It says that it has started. The first message that it gets is the pickle of an `Opening`, as an
array of bytes: the child trusts its parent. Each further one is a call of a method of
`LocalRunner`, `[name, *arguments]`. The parent does not trust its child, so answers are checked
JSON values, see `answers`.
"""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

import numpy as np

from dm_env_rpc_client.bridges.env_c_api.child_process import answers
from dm_env_rpc_client.bridges.env_c_api.child_process.pipe import ChildPipe
from dm_env_rpc_client.bridges.env_c_api.library import Opening
from dm_env_rpc_client.bridges.env_c_api.runner import LocalRunner
from dm_env_rpc_client.system import children

ORPHAN_SECONDS = 5.0
"""How long the library may take to return and be released after the parent has ended."""


def main(parent: children.Parent, reader: int, writer: int) -> None:
    """Answers calls until the parent closes its ends of the pipes.

    Args:
      parent: the parent process. When it ends, this one does, even if the library does not
        return from a call.
      reader: descriptor of the pipe with the calls.
      writer: descriptor of the pipe for the answers.
    """
    children.leave_signals_to_parent()
    children.exit_with(parent, ORPHAN_SECONDS)
    pipe = ChildPipe(reader, writer)
    with contextlib.suppress(BrokenPipeError):  # The parent has ended, as it finds out next.
        pipe.send({"result": answers.encode(None)})
    answer_calls(pipe)


def encode_opening(opening: Opening) -> Any:
    """Returns the first message, whose answer is the description."""
    return np.frombuffer(pickle.dumps(opening), np.uint8)


def answer_calls(pipe: ChildPipe) -> None:
    """Answers calls until the pipe ends; then releases the environment."""
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
                # Including an answer above the limits, which was not sent.
                pipe.send({"error": answers.encode_error(error)})
    except (EOFError, BrokenPipeError):
        pass  # The parent has closed the pipe.
    finally:
        if runner is not None:
            runner.close()
