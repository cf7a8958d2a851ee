"""Messages between the processes of one server: tuples, pickled, and open descriptors."""

from __future__ import annotations

import pickle
from typing import Any

from dm_env_rpc_client.system.message_pipe import MessagePipe


def say(pipe: MessagePipe, *message: Any, descriptor: int | None = None) -> None:
    """Sends a message, and an open descriptor; OSError if the other end is closed."""
    pipe.send(pickle.dumps(message), descriptor=descriptor)


def hear(pipe: MessagePipe) -> tuple[tuple[Any, ...], int | None]:
    """Waits for a message, and a descriptor that belongs to the caller then.

    Raises:
      EOFError: the other end is closed.
      OSError: this end is.
    """
    received = pipe.receive()
    return pickle.loads(received.message), received.descriptor
