"""Other processes, such as those of servers, that end with the comparison that they are for."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection as Pipe
from typing import Any

# Forks of a process that uses grpcio, as the reference does, may crash.
_CONTEXT = multiprocessing.get_context("spawn")


@contextlib.contextmanager
def one_processor() -> Iterator[None]:
    """Has this process and those that it starts use one processor."""
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usable)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, usable)


@contextlib.contextmanager
def process(target: Callable[..., None], *arguments: Any) -> Iterator[Pipe]:
    """Runs a function, which gets a pipe and the arguments, in a process; ends it by a None."""
    mine, its = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=target, args=(its, *arguments), daemon=True)
    process.start()
    its.close()
    try:
        yield mine
    finally:
        with contextlib.suppress(BrokenPipeError):
            mine.send(None)
        process.join(10)
        process.kill()
        mine.close()


def _serve(
    told: Pipe,
    serve: Callable[..., AbstractContextManager[Any]],
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
) -> None:
    with serve(*arguments, **keywords) as server:
        told.send(server.address)
        told.recv()


@contextlib.contextmanager
def serving(
    serve: Callable[..., AbstractContextManager[Any]], *arguments: Any, **keywords: Any
) -> Iterator[str]:
    """Serves in another process; gives the address.

    Args:
      serve: returns the server, a context with an `address`.
      *arguments: of `serve`, picklable.
      **keywords: of `serve`, picklable.
    """
    with process(_serve, serve, arguments, keywords) as told:
        address: str = told.recv()
        yield address
