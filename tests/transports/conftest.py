"""What tests of transports have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from dm_env_rpc_client import Tls
from tests.support.certificates import Authority, Issued
from tests.transports.hosts import Host
from tests.transports.raw_client import RawClient
from tests.transports.test_server_streams import Streams


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as made:
        yield made


@pytest.fixture
def streams() -> Streams:
    return Streams()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "own")


@pytest.fixture(scope="session")
def issued(authority: Authority) -> Issued:
    return authority.issue("server")


@pytest.fixture
def tls(issued: Issued) -> Tls:
    """The credentials of a server."""
    return Tls(cert=issued.cert, key=issued.key)


@pytest.fixture
def client(host: Host) -> Iterator[RawClient]:
    with RawClient(host.address) as made:
        yield made


@pytest.fixture
def threadless(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """From now on, threads whose names end like this cannot be started."""

    def refuse(ending: str) -> None:
        start = threading.Thread.start

        def start_or_not(self: threading.Thread) -> None:
            if self.name.endswith(ending):
                raise RuntimeError("can't start new thread")
            start(self)

        monkeypatch.setattr(threading.Thread, "start", start_or_not)

    return refuse
