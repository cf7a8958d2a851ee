"""Fixtures and contexts that serve an environment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from dm_env_rpc_client.launch.standalone import dm_env_rpc_server
from dm_env_rpc_client.server import Server, serve


def serving(
    environment: Any,
    *,
    scope: Literal["function", "module"] = "module",
    checks_errors: bool = False,
    **options: Any,
) -> Any:
    """Returns a fixture, which has the name that it is assigned to.

    Args:
      environment: what is served.
      scope: whether each test has a server, or those of a file share one.
      checks_errors: whether exceptions of the environments fail the test.
      **options: of `serve`.
    """

    @pytest.fixture(scope=scope)
    def served() -> Iterator[Server]:
        with serve(environment, **options) as server:
            yield server
            assert not checks_errors or server.errors == []

    return served


@contextlib.contextmanager
def own_server(environment: Any, **options: Any) -> Iterator[str]:
    """The address of a server, which has these options."""
    with serve(environment, **options) as server:
        yield server.address


@contextlib.contextmanager
def one_file_server(environment: Any) -> Iterator[str]:
    """The same of the server in one file."""
    with dm_env_rpc_server.serve(environment, "localhost:0") as server:
        yield server.address
