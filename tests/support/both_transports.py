"""Runs tests that let "auto" choose over each transport in turn.

A folder's conftest imports the fixture. Programs that tests start call `obey` first. Above
`transports/` and `client/`, nothing differs between the transports: tests there run over grpcio
before a release (`-m slow`).
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from dm_env_rpc_client.transports import endpoint, opening

EVERY = ["http2", "grpc"]
"""The transports, for the `TRANSPORTS` of a module of tests that concern them."""

_VARIABLE = "TESTED_TRANSPORT"
_DEFAULT = ["http2", pytest.param("grpc", marks=pytest.mark.slow)]
_is_for_http2 = endpoint.is_for_http2


def _forced(name: str) -> Any:
    return lambda *arguments: name == "http2" and _is_for_http2(*arguments)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A module whose `TRANSPORTS` says so runs over each of them, or over one alone."""
    chosen = getattr(metafunc.module, "TRANSPORTS", _DEFAULT)
    metafunc.parametrize("transport", chosen, indirect=True)


@pytest.fixture(autouse=True)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The transport that "auto" stands for, here and in programs that the test starts."""
    name: str = getattr(request, "param", "http2")
    monkeypatch.setattr(opening, "is_for_http2", _forced(name))
    monkeypatch.setenv(_VARIABLE, name)
    return name


def forced() -> str:
    """The transport of the test that started this program."""
    return os.environ[_VARIABLE]


def obey(name: str | None = None) -> None:
    """Takes the transport of the test that started this program.

    Args:
      name: the transport; None to find it in the environment, which a program has from the test,
        but a fork of another process does not.
    """
    if name is not None:
        os.environ[_VARIABLE] = name
    vars(opening)["is_for_http2"] = _forced(forced())
