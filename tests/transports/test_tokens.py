"""Tokens: how they travel, how they are read, and who may open a stream."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import hpack
import pytest

from dm_env_rpc_client import SpecError
from dm_env_rpc_client.transports.http2.protocol.control_frames import HeaderBlock
from dm_env_rpc_client.transports.http2.protocol.frames import END_HEADERS
from dm_env_rpc_client.transports.http2.protocol.headers import request_headers
from dm_env_rpc_client.transports.net.addresses import Target
from dm_env_rpc_client.transports.net.metadata import Token, bearer, read_token
from dm_env_rpc_client.transports.server_streams import Peer, StreamStatusError, requiring_token

TOKEN = "tok-43ab"


def opened(*metadata: tuple[str, str | bytes]) -> object:
    """Returns the peer for which a stream was opened."""

    def open_stream(peer: Peer) -> Any:
        return peer

    return requiring_token(TOKEN, open_stream)(Peer("unix:", metadata))


@pytest.mark.parametrize(
    "value", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"BEARER  {TOKEN} ", f"Bearer {TOKEN}".encode()]
)
def test_the_token_opens_a_stream(value: str | bytes) -> None:
    metadata = (("x-other", "1"), ("authorization", value))
    assert opened(*metadata) == Peer("unix:", metadata)


# Others are in row 46.
@pytest.mark.parametrize("value", ["Bearer", "Bearer \xe9"])
def test_another_one_does_not(value: str) -> None:
    with pytest.raises(StreamStatusError, match="not valid") as caught:
        opened(("authorization", value))
    assert caught.value.code == "UNAUTHENTICATED"


def test_the_server_does_not_keep_the_token() -> None:
    assert TOKEN not in str(vars(Token(TOKEN)))


@pytest.mark.parametrize("text", [TOKEN, f"{TOKEN}\n", f" {TOKEN}\r\n\n"])
def test_a_file_may_have_space_around_the_token(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    assert read_token(tmp_path / "token") == TOKEN


@pytest.mark.parametrize("contents", [b"", b"\n", b"a b", b"a\nb", b"\xff", "é".encode()])
def test_a_file_with_anything_else_is_refused(tmp_path: Path, contents: bytes) -> None:
    (tmp_path / "token").write_bytes(contents)
    with pytest.raises(SpecError, match="does not contain a token"):
        read_token(tmp_path / "token")


def test_metadata_is_marked_as_never_to_be_indexed_and_no_header_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    headers = request_headers(Target("", "localhost", 1), False, [bearer(TOKEN)])
    encoded = hpack.Encoder().encode(headers, huffman=False)
    block = HeaderBlock()
    block.begin(END_HEADERS, 1, memoryview(encoded))
    assert (b"authorization", f"Bearer {TOKEN}".encode()) in block.decode()
    assert caplog.text == ""
    caplog.set_level(logging.WARNING)
    secret = [each[0] for each in hpack.Decoder().decode(encoded, raw=True) if not each.indexable]
    assert secret == [b"authorization"]
