"""Tokens: a secret that a client sends with its call, and that a server may require.

It travels as the metadata `authorization: Bearer <token>` (RFC 6750). No error shows it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from pathlib import Path

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.transports.server_streams import (
    OpenStream,
    Peer,
    ServerStream,
    StreamStatusError,
)

_KEY = "authorization"
_SCHEME = "Bearer "
_TOKEN = re.compile(r"[\x21-\x7e]+")


def bearer(token: str) -> tuple[str, str]:
    """Returns the metadata that carries a token.

    Raises:
      SpecError: it is not text of printable ASCII characters without spaces.
    """
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        given = "" if isinstance(token, str) else f", got {type(token).__name__}"
        raise SpecError(f"a token is text of printable ASCII characters without spaces{given}")
    return _KEY, _SCHEME + token


def read_token(path: str | os.PathLike[str]) -> str:
    """Returns the token in a file, without spaces and line breaks around it.

    Raises:
      SpecError: the file cannot be read, or does not contain one token.
    """
    try:
        token = Path(path).read_text("utf-8").strip()
        bearer(token)
    except OSError as error:
        raise SpecError(f"cannot read the token from {path}: {error.strerror}") from None
    except ValueError:
        raise SpecError(
            f"{path} does not contain a token: one line of printable ASCII characters without "
            "spaces"
        ) from None
    return token


class Token:
    """A token that is required.

    It keeps a hash only. Comparing hashes takes the same time whatever the other end sent.

    Args:
      token: the token.

    Raises:
      SpecError: it is not a token.
    """

    def __init__(self, token: str):
        self._expected = _hash(bearer(token)[1].removeprefix(_SCHEME))

    def is_equal(self, sent: str) -> bool:
        """Whether this is what was sent."""
        return hmac.compare_digest(_hash(sent), self._expected)


def requiring_token(token: str, open_stream: OpenStream) -> OpenStream:
    """Returns what opens streams for clients that send a token, and refuses all others.

    Raises:
      SpecError: `token` is not a token.
    """
    required = Token(token)

    def open_admitted(peer: Peer) -> ServerStream:
        sent = [value for key, value in peer.metadata if key == _KEY]
        if not sent:
            raise StreamStatusError(
                "UNAUTHENTICATED",
                "this server requires a token in the metadata 'authorization: Bearer <token>', and "
                "the call has none; pass token= to make or connect, or --token-file to dm-env-rpc",
            )
        value = sent[0] if isinstance(sent[0], str) else sent[0].decode("latin-1")
        is_bearer = value[: len(_SCHEME)].lower() == _SCHEME.lower()
        is_right = required.is_equal(value[len(_SCHEME) :].strip())
        if len(sent) > 1 or not is_bearer or not is_right:
            raise StreamStatusError(
                "UNAUTHENTICATED", "the token in the metadata 'authorization' is not valid here"
            )
        return open_stream(peer)

    return open_admitted


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
