"""The server's address and connection options, combined into one value."""

from __future__ import annotations

import dataclasses
import ssl
import urllib.request
from typing import Literal, Protocol, TypedDict, cast, get_args

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
    """An interface for recording the messages of every stream to an endpoint."""

    def recorded(self, stream: Stream, endpoint: Endpoint) -> Stream:
        """Return a stream that behaves like `stream` and records its messages."""

    def recorded_async(self, stream: AsyncStream, endpoint: Endpoint) -> AsyncStream:
        """Return an asynchronous stream that behaves like `stream` and records its messages."""

    def settle(self) -> None:
        """Wait until the file contains all recorded messages. Never raises."""


class ReachKeywords(TypedDict, total=False):
    """The fields of `ReachOptions`, as keyword arguments."""

    credentials: Credentials | None
    insecure: bool
    metadata: Metadata | None
    token: str | None
    transport: Transport


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReachOptions:
    """Connection options for any address, validated on creation.

    Attributes:
      credentials: TLS credentials; None for plaintext.
      insecure: whether plaintext connections to other machines are allowed.
      metadata: the metadata to send with the call. It is copied, so later changes to a list have
        no effect.
      token: the token to send with the call, as `authorization: Bearer <token>`.
      transport: the transport of the stream.

    Raises:
      SpecError: an option is invalid or has the wrong type, a file of `credentials` cannot be
        read, or both `token` and `metadata` contain an authorization.
    """

    # Credentials, metadata and the token may be secret, so no repr shows them.
    credentials: Credentials | None = dataclasses.field(default=None, repr=False)
    insecure: bool = False
    metadata: Metadata | None = dataclasses.field(default=None, repr=False)
    token: str | None = dataclasses.field(default=None, repr=False)
    transport: Transport = "auto"

    def __post_init__(self) -> None:
        check_transport(self.transport)
        check_credentials(self.credentials)
        arguments.flag("insecure", self.insecure)
        object.__setattr__(self, "metadata", check_metadata(self.metadata))
        self.sent_metadata()  # Called to check the token.

    def sent_metadata(self) -> Metadata | None:
        """Return the metadata of a call, including the token."""
        if self.token is None:
            return self.metadata
        added = bearer(self.token)
        own = self.metadata or ()
        if any(key == added[0] for key, _ in own):
            raise SpecError(f"pass either token or the metadata key {added[0]!r}, not both")
        return (*own, added)

    @property
    def reaching(self) -> ReachKeywords:
        """The fields of `ReachOptions`, without those of subclasses, as keyword arguments."""
        names = ReachKeywords.__annotations__
        return cast("ReachKeywords", {name: getattr(self, name) for name in names})


@dataclasses.dataclass(frozen=True)
class Endpoint(ReachOptions):
    """A server's address and connection options, validated on creation.

    Attributes:
      address: `host:port`, `unix:path` or another gRPC target.
      metadata: as for `ReachOptions`, with the token added.
      max_message_bytes: the maximum size of a received message.
      tap: an object that records the messages of the streams, or None for no recording.

    Raises:
      SpecError: an option is invalid, as for `ReachOptions`; the address is invalid; the
        connection to another machine would be plaintext, but `insecure` is False; or local
        credentials are used for another machine.
    """

    address: str
    _: dataclasses.KW_ONLY
    max_message_bytes: int = MAX_MESSAGE_BYTES
    tap: Tap | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_address(self.address, "a server address")
        super().__post_init__()
        check_encryption(self.address, self.credentials, self.insecure)
        if self.transport == "grpc" and ".localhost" in self.address and self.stays_on_loopback:
            raise SpecError(
                f"{self.address}: the transport 'grpc' cannot check what a name resolves to; "
                "use 'localhost' or an IP address, or pass transport='http2' or insecure=True"
            )
        object.__setattr__(self, "metadata", self.sent_metadata())
        object.__setattr__(self, "token", None)

    def with_metadata(self, added: Metadata) -> Endpoint:
        """Return a copy with the metadata in `added`, except for keys that already exist."""
        own = self.metadata or ()
        keys = {key for key, _ in own}
        new = [pair for pair in added if pair[0] not in keys]
        return dataclasses.replace(self, metadata=(*own, *new)) if new else self

    @property
    def stays_on_loopback(self) -> bool:
        """Whether the connection must not leave this machine, because it is plaintext."""
        is_plain = self.credentials is None or is_local_credentials(self.credentials)
        return is_plain and not self.insecure


def check_transport(transport: str) -> None:
    """Raise SpecError if the transport is unknown."""
    arguments.one_of("transport", transport, get_args(Transport))


def is_for_http2(address: str, credentials: Credentials | None) -> bool:
    """Whether "auto" selects the transport "http2" for an address.

    Other kinds of gRPC targets, credentials that only grpcio can read, and proxies require
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
    """Whether grpcio would apply a proxy variable, such as `https_proxy`, to `host`."""
    proxies = urllib.request.getproxies().keys() & {"grpc", "https", "http"}
    return bool(proxies) and not urllib.request.proxy_bypass(host)
