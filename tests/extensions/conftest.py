"""The client's tests run over both transports."""

from tests.support.both_transports import pytest_generate_tests, transport

__all__ = ["pytest_generate_tests", "transport"]
