"""Where servers in other languages listen, and how it is protected."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any

import grpc
import pytest

from dm_env_rpc_client import ConnectionLostError, make
from tests.interop.conftest import Start

IPV6 = "[::1]:0"


def check_steps(address: str, **kwargs: Any) -> None:
    with make(address, {"length": 2}, **kwargs) as env:
        assert env.reset().first()
        assert list(env.step({"string": ["here"]}).observation["string"]) == ["here"]
        assert env.step({}).last()


def test_unix_sockets(start: Start, transport: Any, tmp_path: Path) -> None:
    _, address = start("--address", f"unix:{tmp_path / 'socket'}")
    assert address.startswith("unix:")
    check_steps(address, transport=transport)


def test_ipv6(start: Start, transport: Any) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"there is no IPv6 on this machine: {error}")
    _, address = start("--address", IPV6)
    assert address.startswith("[::1]:")
    check_steps(address, transport=transport)


def test_a_name_with_several_addresses(start: Start, transport: Any) -> None:
    _, address = start()
    check_steps(address.replace("127.0.0.1", "localhost"), transport=transport)


def credentials_for(transport: str, certificate: Path) -> Any:
    """What trusts a server with this certificate alone."""
    if transport == "http2":
        return ssl.create_default_context(cafile=certificate)
    return grpc.ssl_channel_credentials(certificate.read_bytes())


def test_tls(start: Start, transport: Any, certificate: tuple[Path, Path]) -> None:
    key, crt = certificate
    _, address = start("--certificate", crt, "--key", key)
    address = address.replace("127.0.0.1", "localhost")
    check_steps(address, credentials=credentials_for(transport, crt), transport=transport)


def test_a_server_with_tls_refuses_plaintext(
    start: Start, transport: Any, certificate: tuple[Path, Path]
) -> None:
    key, crt = certificate
    _, address = start("--certificate", crt, "--key", key)
    with pytest.raises(ConnectionLostError):
        make(address, transport=transport, timeout=0.5)
