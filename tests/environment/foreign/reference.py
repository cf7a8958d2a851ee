"""A client of PyPI's dm-env-rpc that leaves no thread behind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import grpc
from dm_env_rpc.v1 import connection


@contextlib.contextmanager
def reference_connection(address: str) -> Iterator[Any]:
    """A connection of the reference's to a server on this machine."""
    with grpc.insecure_channel(address) as channel:
        own = connection.Connection(channel)
        try:
            yield own
        finally:
            # Its request iterator ends with nothing else.
            own._stream._requests.put(None)
            own.close()
