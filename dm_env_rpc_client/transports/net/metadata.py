"""The metadata that a client sends as HTTP/2 headers with a call, and the token in the metadata.

A token is a secret that a server can require. The token is sent as the metadata
`authorization: Bearer <token>` (RFC 6750). No error message contains the token.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.system.secrets import revealed

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]

_KEY = re.compile(r"[0-9a-z_.-]+")
_TEXT = re.compile(r"[\x20-\x7e]*")

_AUTHORIZATION = "authorization"
_BEARER = "Bearer "
_TOKEN = re.compile(r"[\x21-\x7e]+")


def check_metadata(metadata: Metadata | None) -> tuple[tuple[str, str | bytes], ...] | None:
    """Return metadata as a tuple if it is valid. grpcio would only log invalid metadata.

    Values can be secret, and an invalid key can contain a secret, so no error message shows them.

    Raises:
      SpecError: a key or a value contains characters that HTTP/2 headers cannot contain.
    """
    metadata = revealed(metadata, "metadata")
    if metadata is None:
        return None
    # A text is a collection, too: of characters.
    is_text = isinstance(metadata, str | bytes)
    if is_text or isinstance(metadata, Mapping) or not isinstance(metadata, Collection):
        hint = "; pass list(metadata.items())" if isinstance(metadata, Mapping) else ""
        raise SpecError(
            f"metadata must be a sequence of (key, value) pairs, or None, got "
            f"{type(metadata).__name__}{hint}"
        )
    checked: list[tuple[str, str | bytes]] = []
    for number, pair in enumerate(metadata, 1):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise SpecError(
                f"metadata must be a sequence of (key, value) pairs; pair {number} is "
                f"{type(pair).__name__}"
            )
        key, value = pair
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise SpecError(
                f"metadata pair {number} has an invalid key; a key may contain only lower-case "
                "letters, digits, '_', '-' and '.'"
            )
        value = revealed(value, "metadata")
        is_binary = key.endswith("-bin")
        # gRPC encodes values by the suffix of the key.
        if is_binary != isinstance(value, bytes):
            expected = "bytes" if is_binary else "str"
            raise SpecError(f"metadata {key!r}: expected {expected}, got {type(value).__name__}")
        # The value may be a secret, so the error does not show it.
        if isinstance(value, str) and not _TEXT.fullmatch(value):
            raise SpecError(
                f"metadata {key!r}: the value must consist of printable ASCII characters"
            )
        checked.append((key, value))
    return tuple(checked)


def bearer(token: str) -> tuple[str, str]:
    """Return the metadata that carries a token.

    Raises:
      SpecError: the token does not consist of printable ASCII characters without spaces.
    """
    token = revealed(token, "token")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        given = "" if isinstance(token, str) else f", got {type(token).__name__}"
        raise SpecError(f"a token must consist of printable ASCII characters without spaces{given}")
    return _AUTHORIZATION, _BEARER + token


def read_token(path: str | os.PathLike[str]) -> str:
    """Return the token in a file, without the surrounding whitespace.

    Raises:
      SpecError: the file cannot be read, or does not contain exactly one token.
    """
    try:
        token = Path(path).read_text("utf-8").strip()
        bearer(token)
    except OSError as error:
        raise SpecError(f"cannot read the token from {path}: {error.strerror}") from None
    except ValueError:
        raise SpecError(
            f"{path} does not contain a token, which is one line of printable ASCII characters "
            "without spaces"
        ) from None
    return token


class Token:
    """The token that a server requires.

    The object keeps only a hash of the token. Comparing hashes takes the same time for every token
    that a client sends.

    Args:
      token: the token.

    Raises:
      SpecError: `token` is not a valid token.
    """

    def __init__(self, token: str):
        self._expected = _hash(bearer(token)[1].removeprefix(_BEARER))

    def is_equal(self, sent: str) -> bool:
        """Return whether `sent` equals the required token."""
        # In constant time, and of equal length: neither the token nor its length can be measured.
        return hmac.compare_digest(_hash(sent), self._expected)

    def is_in(self, metadata: Metadata) -> bool | None:
        """Return whether the metadata contains exactly this token, or None if it has no token."""
        sent = [value for key, value in metadata if key == _AUTHORIZATION]
        if not sent:
            return None
        value = sent[0] if isinstance(sent[0], str) else sent[0].decode("latin-1")
        is_bearer = value[: len(_BEARER)].lower() == _BEARER.lower()
        is_right = self.is_equal(value[len(_BEARER) :].strip())
        # Two headers may mean one thing to a proxy and another here. The comparison runs in any
        # case.
        return len(sent) == 1 and is_bearer and is_right


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
