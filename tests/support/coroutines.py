"""Tests that are coroutines."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

__all__ = ["in_a_loop"]

Parameters = ParamSpec("Parameters")


def in_a_loop(
    test: Callable[Parameters, Coroutine[Any, Any, None]],
) -> Callable[Parameters, None]:
    """Makes a test of a coroutine, which runs in an event loop of its own."""

    @functools.wraps(test)
    def run(*arguments: Parameters.args, **fixtures: Parameters.kwargs) -> None:
        asyncio.run(test(*arguments, **fixtures))

    return run
