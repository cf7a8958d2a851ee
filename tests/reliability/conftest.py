"""The client's tests run over both transports, and against the servers that clients meet."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.reliability.echoing import SERVERS, Echoing, echoing
from tests.support.both_transports import pytest_generate_tests, transport

__all__ = ["pytest_generate_tests", "transport"]


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads are switched every microsecond."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(params=SERVERS)
def echo_server(request: pytest.FixtureRequest) -> Iterator[Echoing]:
    """Answers extensions with themselves."""
    with echoing(request.param) as server:
        yield server
