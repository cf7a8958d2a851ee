"""Which server to connect to and how: what `connect` and `make` take, as one value."""

from __future__ import annotations

import dataclasses
import ssl
import urllib.request
from typing import Literal, Protocol, get_args

from dm_env_rpc_client import arguments
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.transports.net.addresses import Target, check_address, is_loopback
from dm_env_rpc_client.transports.net.credentials import (
    Credentials,
    Tls,
    check_credentials,
    check_encryption,
    is_local_credentials,
)
from dm_env_rpc_client.transports.net.metadata import Metadata, bearer, check_metadata
from dm_env_rpc_client.transports.streams import MAX_MESSAGE_BYTES, AsyncStream, Stream

Transport = Literal["auto", "grpc", "http2"]


class Tap(Protocol):
    """Sees the messages of every stream to an endpoint, to record them."""

    def recorded(self, stream: Stream, endpoint: Endpoint) -> Stream:
        """Returns a stream that does what `stream` does, and records its messages."""

    def recorded_async(self, stream: AsyncStream, endpoint: Endpoint) -> AsyncStream:
        """`recorded` for an event loop."""

    def settle(self) -> None:
        """Returns when all that was recorded is in the file. Never raises."""


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """A server and how to connect to it; validated when it is made.

    Attributes:
      address: `host:port`, `unix:path` or another gRPC target.
      credentials: TLS credentials; None for plaintext.
      insecure: whether plaintext to another machine is allowed.
      metadata: sent with the call.
      transport: which transport carries the stream.
      max_message_bytes: the size of the largest message that is received.
      token: sent with the call, as `authorization: Bearer <token>`; it becomes a part of
        `metadata`.
      tap: records the messages of the streams; None for none.

    Raises:
      SpecError: plaintext to another machine without `insecure`; local credentials for
        another machine; an unknown transport; invalid metadata, an invalid token or an invalid
        address; a file of `credentials` that cannot be read.
    """

    address: str
    credentials: Credentials | None = dataclasses.field(default=None, repr=False)
    insecure: bool = False
    # It may hold secrets, and so may credentials.
    metadata: Metadata | None = dataclasses.field(default=None, repr=False)
    transport: Transport = "auto"
    max_message_bytes: int = MAX_MESSAGE_BYTES
    token: dataclasses.InitVar[str | None] = None
    tap: Tap | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self, token: str | None) -> None:
        check_address(self.address, "a server address")
        metadata = check_connecting(
            self.credentials, self.insecure, self.metadata, token, self.transport
        )
        check_encryption(self.address, self.credentials, self.insecure)
        if self.transport == "grpc" and ".localhost" in self.address and self.stays_on_loopback:
            raise SpecError(
                f"{self.address}: the transport 'grpc' cannot check which address a name has; use "
                "'localhost', an IP address or transport='http2', or pass insecure=True"
            )
        object.__setattr__(self, "metadata", metadata)

    def with_metadata(self, added: Metadata) -> Endpoint:
        """Returns the same with further metadata. What is there already under a key is kept."""
        own = self.metadata or ()
        keys = {key for key, _ in own}
        new = [pair for pair in added if pair[0] not in keys]
        return dataclasses.replace(self, metadata=(*own, *new)) if new else self

    @property
    def stays_on_loopback(self) -> bool:
        """Whether the connection is plaintext that must not leave this machine."""
        is_plain = self.credentials is None or is_local_credentials(self.credentials)
        return is_plain and not self.insecure


def check_connecting(
    credentials: Credentials | None,
    insecure: bool,
    metadata: Metadata | None,
    token: str | None,
    transport: Transport,
) -> Metadata | None:
    """Checks the arguments of a client that do not depend on the address.

    The arguments are those of `Endpoint`.

    Returns:
      The metadata, with the token; a copy, which a list that changes later does not change.

    Raises:
      SpecError: one is of another type, or invalid.
    """
    check_transport(transport)
    check_credentials(credentials)
    arguments.flag("insecure", insecure)
    checked = check_metadata(metadata)
    if token is None:
        return checked
    added = bearer(token)
    checked = checked or ()
    if added[0] in dict(checked):
        raise SpecError(f"pass either token or the metadata {added[0]!r}, not both")
    return (*checked, added)


def check_transport(transport: str) -> None:
    """Raises SpecError if there is no such transport."""
    arguments.one_of("transport", transport, get_args(Transport))


def is_for_http2(address: str, credentials: Credentials | None) -> bool:
    """Whether "auto" selects the transport "http2" for an address.

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
