"""Batches of environments that observe their actions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dm_env_rpc_client import BatchedEnvironment
from dm_env_rpc_client.server import Server, serve
from tests.support.environments import Echo

Echoes = Callable[..., BatchedEnvironment]


@pytest.fixture
def apart() -> Iterator[Server]:
    """A server of environments none of which waits for another one."""
    with serve(Echo, threads="world") as server:
        yield server
        assert server.errors == []


@pytest.fixture
def echoes(apart: Server) -> Iterator[Echoes]:
    """Opens and resets batches, which are closed after the test."""
    with contextlib.ExitStack() as stack:

        def opened(*arguments: Any, **options: Any) -> BatchedEnvironment:
            made = BatchedEnvironment(apart.address, *arguments, **options)
            env = stack.enter_context(made)
            env.reset()
            return env

        yield opened
