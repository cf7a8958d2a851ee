"""Where servers in other languages listen, and how it is protected."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from dm_env_rpc_client import make

IPV6 = "[::1]:0"

Shared = Callable[..., str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sockets")


def check_steps(address: str, **kwargs: Any) -> None:
    with make(address, {"length": 2}, **kwargs) as env:
        assert env.reset().first()
        assert list(env.step({"string": ["here"]}).observation["string"]) == ["here"]
        assert env.step({}).last()


def test_unix_sockets(shared: Shared, peer: str, transport: Any, folder: Path) -> None:
    address = shared("--address", f"unix:{folder / peer}")
    assert address.startswith("unix:")
    check_steps(address, transport=transport)


def test_ipv6(shared: Shared, transport: Any) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"there is no IPv6 on this machine: {error}")
    address = shared("--address", IPV6)
    assert address.startswith("[::1]:")
    check_steps(address, transport=transport)


def credentials_for(transport: str, certificate: Path) -> Any:
    """What trusts a server with this certificate alone."""
    if transport == "http2":
        return ssl.create_default_context(cafile=certificate)
    return grpc.ssl_channel_credentials(certificate.read_bytes())


def test_tls(shared: Shared, transport: Any, certificate: tuple[Path, Path]) -> None:
    key, crt = certificate
    address = shared("--certificate", crt, "--key", key).replace("127.0.0.1", "localhost")
    check_steps(address, credentials=credentials_for(transport, crt), transport=transport)
