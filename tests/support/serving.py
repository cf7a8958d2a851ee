"""Fixtures that serve an environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest

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
