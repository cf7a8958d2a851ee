"""The headers of the one request that a stream makes."""

from __future__ import annotations

import base64
from typing import TypeAlias

from dm_env_rpc_client.transports.http2.client.target import Target
from dm_env_rpc_client.transports.metadata import Metadata, check_metadata
from dm_env_rpc_client.transports.status import PROCESS
from dm_env_rpc_client.version import __version__

Header: TypeAlias = tuple[str, str | bytes] | tuple[str, str | bytes, bool]
"""A name, a value, and True if it may be secret."""


def request_headers(target: Target, is_tls: bool, metadata: Metadata | None) -> list[Header]:
    """Returns the headers of the one request that a connection makes.

    Metadata may be secret: it is marked as never to be indexed (RFC 7541, section 7.1.3).

    Raises:
      SpecError: HTTP/2 does not take the metadata.
    """
    checked = check_metadata(metadata) or ()
    return [
        (":method", "POST"),
        (":scheme", "https" if is_tls else "http"),
        (":path", PROCESS),
        (":authority", target.authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", f"dm-env-rpc-client/{__version__}"),
        *(
            (key, base64.b64encode(value).rstrip(b"=") if isinstance(value, bytes) else value, True)
            for key, value in checked
        ),
    ]
