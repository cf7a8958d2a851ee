"""Batches of environments that observe their actions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dm_env_rpc_client import BatchedEnvironment
from dm_env_rpc_client.server import Server

Echoes = Callable[..., BatchedEnvironment]


@pytest.fixture
def echoes(echo_environment_server: Server) -> Iterator[Echoes]:
    """Opens and resets batches, which are closed after the test."""
    with contextlib.ExitStack() as stack:

        def opened(*arguments: Any, **options: Any) -> BatchedEnvironment:
            made = BatchedEnvironment(echo_environment_server.address, *arguments, **options)
            env = stack.enter_context(made)
            env.reset()
            return env

        yield opened
