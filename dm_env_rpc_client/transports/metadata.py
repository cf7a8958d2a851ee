"""Metadata: the pairs that a client sends with the call, as HTTP/2 headers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from dm_env_rpc_client.errors import SpecError

SPREADS = ("dm-env-rpc-spreads", "1")
"""Says that a client spreads its streams over the processes of a server, which is told to clients
by the HTTP/2 setting SERVING_PROCESSES."""

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]

_KEY = re.compile(r"[0-9a-z_.-]+")
_TEXT = re.compile(r"[\x20-\x7e]*")


def check_metadata(metadata: Metadata | None) -> tuple[tuple[str, str | bytes], ...] | None:
    """Returns valid metadata as a tuple. grpcio only logs a message if it is invalid.

    Values may be secret, so no error shows one; nor a key that is invalid, which may hold one.

    Raises:
      SpecError: a key or a value contains characters that HTTP/2 headers cannot contain.
    """
    if metadata is None:
        return None
    is_text = isinstance(metadata, str | bytes)
    if is_text or isinstance(metadata, Mapping) or not isinstance(metadata, Collection):
        hint = "; pass list(metadata.items())" if isinstance(metadata, Mapping) else ""
        raise SpecError(
            f"metadata must be a sequence of pairs (key, value), or None, got "
            f"{type(metadata).__name__}{hint}"
        )
    for number, pair in enumerate(metadata, 1):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise SpecError(
                f"metadata must be a sequence of pairs (key, value); pair {number} is "
                f"{type(pair).__name__}"
            )
        key, value = pair
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise SpecError(
                f"metadata pair {number} has an invalid key: keys are lower-case letters, digits "
                "and '_', '-', '.'"
            )
        is_binary = key.endswith("-bin")
        if is_binary != isinstance(value, bytes):
            expected = "bytes" if is_binary else "text"
            raise SpecError(f"metadata {key!r}: expected {expected}, got {type(value).__name__}")
        if isinstance(value, str) and not _TEXT.fullmatch(value):
            raise SpecError(f"metadata {key!r}: the value must be printable ASCII")
    return tuple((key, value) for key, value in metadata)
