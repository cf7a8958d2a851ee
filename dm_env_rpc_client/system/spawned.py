"""Child processes that run a function of this program, spawned by multiprocessing.

The children are spawned because a forked child would inherit locks that other threads of this
process hold, and because CUDA fails in forked children.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from dm_env_rpc_client.system import children
from dm_env_rpc_client.system.message_pipe import MessagePipe


class SpawnedChild:
    """A started child process. Only one thread is allowed to wait for the process to end.

    The child ignores signals to the process group and leaves them to this process (see
    `children.leave_signals_to_parent`).

    Args:
      run: the function that the child calls with its end of the pipe and `arguments`.
      *arguments: further arguments of `run`, which are pickled.
      name: the name of the process.

    Attributes:
      pid: the id of the process.
      pipe: this end of a pipe to the child.

    Raises:
      Exception: an argument cannot be pickled, or the system cannot start another process.
    """

    def __init__(self, run: Callable[..., object], *arguments: Any, name: str):
        self.pipe, others = MessagePipe.pair()
        self._process = multiprocessing.get_context("spawn").Process(
            target=_run, args=(run, others, arguments), name=name, daemon=True
        )
        try:
            self._process.start()
        except BaseException:
            self.pipe.close()
            raise
        finally:
            others.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the child process is running."""
        return self._process.is_alive()

    def kill(self) -> None:
        """Kill the child process if it is still running."""
        self._process.kill()

    def wait(self, seconds: float | None = None) -> int:
        """Wait until the process has ended, and return its exit code as `subprocess` does.

        Args:
          seconds: the time limit, in seconds, after which the process is killed, or None for no
            limit.
        """
        self._process.join(seconds)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        code = self._process.exitcode
        assert code is not None
        return code

    def close(self) -> None:
        """Close the pipe and release the ended process. The child cannot be used afterwards."""
        self.pipe.close()
        self._process.close()


def _run(run: Callable[..., object], pipe: MessagePipe, arguments: tuple[Any, ...]) -> None:
    children.leave_signals_to_parent()
    run(pipe, *arguments)
