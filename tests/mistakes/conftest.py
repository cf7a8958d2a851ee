"""A server that mistakes are made with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dm_env_rpc_client.server import Catch
from tests.support.serving import own_server


@pytest.fixture(scope="module")
def catch() -> Iterator[str]:
    """The address of a server of Catch."""
    with own_server(Catch) as address:
        yield address
