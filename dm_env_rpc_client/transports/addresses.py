"""Parses addresses of servers; opens nothing."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from dm_env_rpc_client.errors import SpecError

__all__ = ["HostPort", "is_loopback", "parse_host_port"]


class HostPort(NamedTuple):
    """A TCP address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_loopback(address: str) -> bool:
    """Whether an address, in the syntax of gRPC, is of this machine: loopback or a unix socket."""
    scheme, _, rest = address.partition(":")
    if scheme in ("unix", "unix-abstract"):
        return True
    if scheme in ("ipv4", "ipv6", "dns"):
        address = rest.rsplit("/", 1)[-1]
    host = address.rsplit(":", 1)[0] if address.count(":") == 1 or "]" in address else address
    host = host.strip("[]")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_host_port(address: str) -> HostPort:
    """Splits `host:port`; an IPv6 host is in brackets.

    Raises:
      SpecError: the address has another form, or its port is not from 0 to 65535.
    """
    host, colon, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    bracketed = host.startswith("[") and host.endswith("]")
    plain = host[1:-1] if bracketed else host
    well_formed = bool(colon and plain) and (":" not in plain or bracketed)
    if not well_formed or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise SpecError(f"a TCP address looks like 'localhost:5001', got {address!r}")
    return HostPort(plain, int(port))
