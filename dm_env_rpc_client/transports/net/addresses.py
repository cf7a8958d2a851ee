"""Parse and check server addresses, without opening sockets."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from dm_env_rpc_client.arguments import shown
from dm_env_rpc_client.errors import SpecError


class HostPort(NamedTuple):
    """A TCP address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Target(NamedTuple):
    """The location of a server."""

    path: str
    """The path of a unix socket, or an empty string for TCP."""

    host: str
    port: int

    @property
    def authority(self) -> str:
        """The value of the `:authority` header, which names the server."""
        if self.path:
            return "localhost"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, address: str) -> Target:
        """Parse `host:port`, `unix:path` or `unix-abstract:name`, or raise SpecError."""
        scheme, _, rest = address.partition(":")
        if scheme == "unix" and rest:
            return cls(rest.removeprefix("//"), "", 0)
        if scheme == "unix-abstract" and rest:
            return cls("\0" + rest, "", 0)
        return cls("", *parse_host_port(address, listens=False))


def check_address(address: object, what: str, *, listens: bool = False) -> None:
    """Raise SpecError if an address is invalid for every transport.

    Args:
      address: the address to check: `host:port`, `unix:path` or another gRPC target.
      what: the kind of address, for the error text, such as "a server address".
      listens: whether the address is for a server to listen on; it can then have port 0.
    """
    form = f"{what} looks like 'localhost:50051'"
    if not isinstance(address, str) or not address:
        hint = ""
        if isinstance(address, int) and not isinstance(address, bool):
            hint = f"; did you mean 'localhost:{address}'?"
        raise SpecError(f"{form}, got {shown(address)}{hint}")
    reason = why_no_address(address, listens=listens)
    if reason:
        raise SpecError(f"{form}, got {address!r}: {reason}")


def why_no_address(address: str, *, listens: bool = False) -> str:
    """Return the reason why an address is not valid, or "" if it is valid.

    The arguments are the same as those of `check_address`.
    """
    scheme, colon, rest = address.partition(":")
    if scheme in _PATHS and colon:
        is_path = rest.removeprefix("//") and not rest.endswith("/") and "\0" not in rest
        return (
            "" if is_path else f"the path is missing; expected, for example, '{scheme}:/tmp/socket'"
        )
    if scheme in _UNCHECKED and rest:
        return ""
    if scheme not in _NAMES and rest.startswith("//"):
        if scheme.lower() in _OFTEN_WRITTEN:
            return f"remove '{scheme}://'"
        return f"gRPC does not support the address scheme '{scheme}:'"
    places = [address]
    if scheme in _NAMES:
        # A resolver may precede the name; several IP addresses are one target.
        places = rest.rsplit("/", 1)[-1].split(",")
    found = [_split(place, 0 if listens else 1) for place in places]
    return next((reason for reason in found if isinstance(reason, str)), "")


_PATHS = ("unix", "unix-abstract")
_NAMES = ("dns", "ipv4", "ipv6")
_OFTEN_WRITTEN = ("http", "https", "grpc", "grpcs", "tcp")
_UNCHECKED = ("vsock", "xds", "google-c2p", "google-c2p-experimental")
"""The gRPC address schemes whose syntax is not checked here."""


def is_loopback(address: str) -> bool:
    """Return whether a gRPC address is a loopback address or a unix socket.

    RFC 6761 defines names ending in `.localhost` as loopback, but a resolver can still return
    another address, so the resolved address must be checked with `check_resolved`.
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
    """Raise SpecError if the host name of a plaintext connection resolved to another machine.

    Args:
      host: the host name.
      found: the resolved IP address.
    """
    if not ipaddress.ip_address(found.partition("%")[0]).is_loopback:
        raise SpecError(
            f"plaintext is allowed for loopback only, but {host} resolved to {found}; "
            "pass credentials=ssl.create_default_context() or insecure=True"
        )


def parse_host_port(address: str, *, listens: bool = True) -> HostPort:
    """Split `host:port`, in which an IPv6 host must be in brackets.

    Args:
      address: the address to split.
      listens: whether port 0 is allowed, with which a server selects any free port.

    Raises:
      SpecError: the address is not of the form `host:port`, or its port is out of range.
    """
    form = "a TCP address looks like 'localhost:5001'"
    if not isinstance(address, str):
        raise SpecError(f"{form}, got {shown(address)}")
    found = _split(address, 0 if listens else 1)
    if isinstance(found, str):
        raise SpecError(f"{form}, got {address!r}: {found}")
    return found


def _split(text: str, least: int) -> HostPort | str:
    """Split `host:port` with a port of at least `least`, or return the reason why it is invalid."""
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    plain = host[1:-1] if is_bracketed else host
    if not colon or not port or port.endswith("]"):
        return "the port is missing"
    if not plain:
        return "the host is missing"
    if not plain.isprintable() or any(each in " []/" for each in plain):
        return f"{host!r} is not a valid host"
    # "::1:50051" could be an address without a port.
    if ":" in plain and not is_bracketed:
        return "a host contains no colons; write IPv6 addresses in brackets, as in '[::1]:50051'"
    if not _PORT.fullmatch(port) or not least <= int(port) <= _MOST_PORT:
        return f"the port must be a number from {least} to {_MOST_PORT}"
    return HostPort(plain, int(port))


_PORT = re.compile("[0-9]{1,5}")
_MOST_PORT = 65535
