"""Addresses that this transport reaches."""

from __future__ import annotations

import ssl
import urllib.request
from typing import NamedTuple

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.transports.addresses import is_loopback, parse_host_port
from dm_env_rpc_client.transports.credentials import Credentials, is_local_credentials
from dm_env_rpc_client.transports.tls import Tls


class Target(NamedTuple):
    """Where a server is."""

    path: str
    """Of a unix socket; empty for TCP."""

    host: str
    port: int

    @property
    def authority(self) -> str:
        """What the server is called in the request."""
        if self.path:
            return "localhost"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, address: str) -> Target:
        """Reads `host:port`, `unix:path` or `unix-abstract:name`; SpecError for others."""
        scheme, _, rest = address.partition(":")
        if scheme == "unix" and rest:
            return cls(rest.removeprefix("//"), "", 0)
        if scheme == "unix-abstract" and rest:
            return cls("\0" + rest, "", 0)
        return cls("", *parse_host_port(address, listens=False))


def can_reach(address: str, credentials: Credentials | None) -> bool:
    """Whether "auto" selects this transport for an address.

    Other kinds of gRPC targets, credentials that only grpcio can read, and proxies are for
    grpcio.
    """
    is_plain = credentials is None or is_local_credentials(credentials)
    if not (is_plain or isinstance(credentials, ssl.SSLContext | Tls)):
        return False
    try:
        target = Target.parse(address)
    except SpecError:
        return False
    return bool(target.path) or is_loopback(address) or not _needs_proxy(target.host)


def _needs_proxy(host: str) -> bool:
    """Whether a variable such as `https_proxy` or `grpc_proxy` says so, as it does to grpcio."""
    proxies = urllib.request.getproxies().keys() & {"grpc", "https", "http"}
    return bool(proxies) and not urllib.request.proxy_bypass(host)
