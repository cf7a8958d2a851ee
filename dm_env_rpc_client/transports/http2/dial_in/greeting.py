"""What is said before HTTP/2 when a server dials in to the program that uses its environments.

On clusters, behind NAT and inside engines the program has the known address, not the environment.
So the server connects to the program, and both say a few lines of JSON; the documentation of
`environment.incoming` lists them. From then on the program is the client of HTTP/2, as ever.
"""

from __future__ import annotations

import dataclasses
import json
import ssl
from typing import Any

from dm_env_rpc_client import arguments
from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.transports.addresses import check_address
from dm_env_rpc_client.transports.credentials import ServerCredentials, Tls, check_encryption
from dm_env_rpc_client.transports.metadata import bearer

ALPN = "dm_env_rpc-dial"

_MAX_LINE_BYTES = 4096

_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Dial:
    """Whom a server dials, and what it offers; validated when it is made.

    Attributes:
      address: `host:port` or `unix:path` of the program.
      credentials: a Tls, or an ssl.SSLContext of a client; None for plaintext.
      insecure: whether plaintext to another machine is allowed.
      token: what the program requires; None for nothing.
      environments: how many environments the program may have at a time.

    Raises:
      SpecError: plaintext to another machine without `insecure`; credentials of grpcio; an invalid
        token; or there is no environment.
    """

    address: str
    credentials: ServerCredentials | None = dataclasses.field(default=None, repr=False)
    insecure: bool = False
    token: str | None = dataclasses.field(default=None, repr=False)
    environments: int = 1

    def __post_init__(self) -> None:
        check_address(self.address, "the address of dial")
        arguments.flag("insecure", self.insecure)
        check_encryption(self.address, self.client_credentials, self.insecure)
        if self.token is not None:
            bearer(self.token)
        environments = arguments.count("dial_environments", self.environments)
        object.__setattr__(self, "environments", environments)

    @property
    def client_credentials(self) -> ssl.SSLContext | Tls | None:
        """The credentials, which are those of a client; SpecError if they are grpcio's."""
        credentials = self.credentials
        if credentials is None or isinstance(credentials, ssl.SSLContext | Tls):
            return credentials
        raise SpecError(
            f"a server that dials {self.address} takes a Tls or an ssl.SSLContext as credentials, "
            f"got {type(credentials).__name__}; pass Tls(ca='ca.crt')"
        )

    def of_worker(self, index: int, processes: int) -> Dial:
        """Returns the part of one of several processes, which share the environments."""
        share, rest = divmod(self.environments, processes)
        return dataclasses.replace(self, environments=share + (index < rest))

    @property
    def stays_on_loopback(self) -> bool:
        """Whether the connection is plaintext that must not leave this machine."""
        return self.credentials is None and not self.insecure

    def hello(self, environments: int) -> bytes:
        """Returns the first line.

        Args:
          environments: how many are offered.
        """
        said: dict[str, Any] = {"dm_env_rpc_dial": _VERSION, "environments": environments}
        if self.token is not None:
            said["token"] = self.token
        return line_of(**said)


def _is_number(value: Any) -> bool:
    """Whether this is an integer from 1 on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def line_of(**said: Any) -> bytes:
    """Returns a line."""
    return json.dumps(said).encode() + b"\n"


def number_of_environments(said: dict[str, Any], most: int | None = None) -> int:
    """Returns how many environments are offered or needed.

    Args:
      said: what a line says.
      most: how many were offered; None for any number.

    Raises:
      ProtocolError: it is no number from 1 to that.
    """
    number = said.get("environments")
    if isinstance(number, int) and _is_number(number) and (most is None or number <= most):
        return number
    bound = "from 1 on" if most is None else f"from 1 to {most}"
    raise ProtocolError(f"expected a number of environments {bound}, got {_shown(number)}")


def _shown(value: Any) -> str:
    """Returns a small number, or the type of anything else, which may be a secret."""
    is_small = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10_000
    return str(value) if is_small else f"a value of type {type(value).__name__}"


class Line:
    """A line that is received in parts."""

    def __init__(self) -> None:
        self._received = bytearray()

    @property
    def room(self) -> int:
        """How many bytes it may still have."""
        return _MAX_LINE_BYTES - len(self._received)

    def add(self, received: bytes) -> dict[str, Any] | None:
        """Takes what was received next; returns what the line says if it is whole.

        Raises:
          ProtocolError: it is too long, has something behind it, or is not JSON.
        """
        self._received += received
        end = self._received.find(b"\n")
        if end < 0:
            if self.room <= 0:
                raise ProtocolError(f"expected a line of at most {_MAX_LINE_BYTES} bytes")
            return None
        if end + 1 < len(self._received):
            raise ProtocolError("expected one line, got more than that")
        try:
            said = json.loads(bytes(self._received))
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            # It may hold a token, so it is not quoted.
            size = len(self._received)
            raise ProtocolError(f"expected a line with an object of JSON, got {size} other bytes")
        return said


def offered(said: dict[str, Any]) -> int:
    """Returns how many environments the first line offers.

    Raises:
      ProtocolError: it is of another protocol or version, or offers none.
    """
    version = said.get("dm_env_rpc_dial")
    if version != _VERSION or isinstance(version, bool):
        raise ProtocolError(f"expected dm_env_rpc_dial {_VERSION}, got {_shown(version)}")
    return number_of_environments(said)
