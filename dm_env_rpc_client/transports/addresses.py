"""Parses addresses of servers; opens nothing."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from dm_env_rpc_client.arguments import shown
from dm_env_rpc_client.errors import SpecError


class HostPort(NamedTuple):
    """A TCP address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def check_is_text(address: object, what: str) -> None:
    """Raises SpecError if an address is not text, or empty.

    Args:
      address: what was given.
      what: what the error calls it, such as "a server address".
    """
    if isinstance(address, str) and address:
        return
    hint = ""
    if isinstance(address, int) and not isinstance(address, bool):
        hint = f"; did you mean 'localhost:{address}'?"
    raise SpecError(f"{what} looks like 'localhost:50051', got {shown(address)}{hint}")


def is_loopback(address: str) -> bool:
    """Whether an address, in the syntax of gRPC, is of this machine: loopback or a unix socket.

    Names ending in `.localhost` are loopback by RFC 6761, but a resolver may say otherwise:
    the result has to be checked (`check_resolved`).
    """
    scheme, _, rest = address.partition(":")
    if scheme in ("unix", "unix-abstract"):
        return True
    if scheme in ("ipv4", "ipv6", "dns"):
        if rest.startswith("//") and not rest.startswith("///"):
            return False  # It names the resolver to ask, which can answer with any address.
        address = rest.rsplit("/", 1)[-1]
    host = address.rsplit(":", 1)[0] if address.count(":") == 1 or "]" in address else address
    host = host.strip("[]")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_resolved(host: str, found: str) -> None:
    """Raises SpecError if a name for a plaintext connection was resolved to another machine.

    Args:
      host: the name.
      found: the IP address that it was resolved to.
    """
    if not ipaddress.ip_address(found.partition("%")[0]).is_loopback:
        raise SpecError(
            f"plaintext is allowed to loopback only, and {host} was resolved to {found}; "
            "pass credentials=ssl.create_default_context() or insecure=True"
        )


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
