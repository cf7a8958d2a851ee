"""Servers of all peers, and the transports that are tried against each."""

from __future__ import annotations

import contextlib
import typing
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from dm_env_rpc_client import DmEnvAdaptor, make
from dm_env_rpc_client.client import connecting
from tests.peers.building import MissingToolchainError
from tests.peers.process import PeerProcess
from tests.peers.servers import BUILT, SERVERS
from tests.support.certificates import self_signed
from tests.support.groups import skip

Start = Callable[..., tuple[PeerProcess, str]]
MakeEnvironment = Callable[..., DmEnvAdaptor]

TRANSPORTS: list[Any] = [name for name in typing.get_args(connecting.Transport) if name != "auto"]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Builds the peer before the time of the test begins."""
    peer = item.callspec.params.get("peer") if hasattr(item, "callspec") else None
    if peer in BUILT:
        with contextlib.suppress(MissingToolchainError, RuntimeError):  # The test will say so.
            BUILT[peer]()
    return (yield)


class _Running:
    """Servers that are started when the first test asks for them."""

    def __init__(self, stack: contextlib.ExitStack):
        self._stack = stack
        self._addresses: dict[tuple[Any, ...], str] = {}

    def address(self, peer: str, *arguments: Any) -> str:
        """Returns the address of the one server of a peer with these arguments."""
        key = (peer, *arguments)
        if key not in self._addresses:
            self._addresses[key] = start_server(self._stack, peer, *arguments)[1]
        return self._addresses[key]


def start_server(
    stack: contextlib.ExitStack, peer: str, *arguments: Any
) -> tuple[PeerProcess, str]:
    """Starts a server and returns it and its address."""
    try:
        process = stack.enter_context(SERVERS[peer](*arguments))
    except MissingToolchainError as error:
        skip(f"{peer} peer", str(error))
    return process, process.hear()


@pytest.fixture(scope="session")
def _running() -> Iterator[_Running]:
    with contextlib.ExitStack() as stack:
        yield _Running(stack)


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=SERVERS)
def peer(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def address(peer: str, _running: _Running) -> str:
    """Of a server that all tests share."""
    return _running.address(peer)


@pytest.fixture
def shared(peer: str, _running: _Running) -> Callable[..., str]:
    """Returns the address of a server with arguments, which all tests share."""
    return lambda *arguments: _running.address(peer, *arguments)


@pytest.fixture
def make_environment(address: str, transport: Any) -> Iterator[MakeEnvironment]:
    """Makes environments of the shared server, which are closed at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda settings={}, **kwargs: stack.enter_context(
            make(address, settings, transport=transport, **kwargs)
        )


@pytest.fixture
def start(peer: str) -> Iterator[Start]:
    """Starts a server of one's own."""
    with contextlib.ExitStack() as stack:
        yield lambda *arguments: start_server(stack, peer, *arguments)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A key and a self-signed certificate for localhost."""
    return self_signed(tmp_path_factory.mktemp("certificate"))
