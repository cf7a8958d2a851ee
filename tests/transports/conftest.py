"""What the tests of the listener have in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.transports.hosts import Host


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as made:
        yield made
