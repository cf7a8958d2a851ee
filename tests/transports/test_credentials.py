"""TLS from files, and tokens: what is read, and what is wrong. Connections are in row 46."""

from __future__ import annotations

import concurrent.futures
import logging
import pickle
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import hpack
import pytest

from dm_env_rpc_client import SpecError, Tls, connect
from dm_env_rpc_client.server import Catch, serve
from dm_env_rpc_client.transports.http2.protocol.control_frames import HeaderBlock
from dm_env_rpc_client.transports.http2.protocol.frames import END_HEADERS
from dm_env_rpc_client.transports.http2.protocol.headers import request_headers
from dm_env_rpc_client.transports.net.addresses import Target
from dm_env_rpc_client.transports.net.metadata import Token, bearer, read_token
from dm_env_rpc_client.transports.server_streams import Peer, StreamStatusError, requiring_token
from tests.support.certificates import Authority, Issued, openssl


class NotYet(grpc.GenericRpcHandler):
    """Answers every call as a proxy does whose server is about to start, so many times."""

    def __init__(self, times: int):
        self.left = times

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if self.left == 0:
            return None
        self.left -= 1

        def refuse(_: bytes, context: grpc.ServicerContext) -> None:
            context.abort(
                grpc.StatusCode.UNAVAILABLE,
                "upstream connect error or disconnect/reset before headers; handshake failed",
            )

        handler: Any = grpc.unary_unary_rpc_method_handler(refuse)
        return handler


@pytest.mark.parametrize("is_tls", [False, True])
def test_what_a_proxy_says_is_no_failure_of_tls(
    authority: Authority, tls: Tls, is_tls: bool
) -> None:
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2), [handler := NotYet(30)])
    if is_tls:
        port = server.add_secure_port("127.0.0.1:0", tls.server_credentials())
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        credentials = Tls(ca=authority.ca) if is_tls else None
        connect(f"127.0.0.1:{port}", timeout=30, credentials=credentials, transport="grpc").close()
        assert handler.left == 0
    finally:
        server.stop(None).wait()


def test_a_client_trusts_the_authorities_of_the_machine_or_those_of_the_file(
    authority: Authority,
) -> None:
    own, machine = Tls(ca=authority.ca).client_context(), Tls().client_context()
    assert [each["subject"] for each in own.get_ca_certs()] == [((("commonName", "root"),),)]
    for context in (own, machine):
        assert context.check_hostname
        assert context.verify_mode is ssl.CERT_REQUIRED
    assert machine.cert_store_stats() == ssl.create_default_context().cert_store_stats()


@pytest.mark.parametrize(
    "make",
    [Tls.server_context, Tls.server_credentials, lambda tls: serve(Catch, credentials=tls)],
)
def test_a_server_needs_a_certificate(make: Callable[[Tls], object]) -> None:
    with pytest.raises(SpecError, match="a server with TLS needs a certificate"):
        make(Tls())


def test_an_encrypted_key_is_refused_and_nobody_is_asked(issued: Issued, tmp_path: Path) -> None:
    key = tmp_path / "key"
    openssl(tmp_path, "pkey", "-in", str(issued.key), "-out", str(key), "-aes256", "-passout",
            "pass:secret")  # fmt: skip
    with pytest.raises(SpecError, match="is encrypted; decrypt it"):
        Tls(cert=issued.cert, key=key)


def test_a_damaged_certificate_is_named(issued: Issued, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    with pytest.raises(SpecError, match=f"{damaged}.* are damaged"):
        Tls(cert=damaged, key=issued.key)


@pytest.mark.parametrize("transport", ["http2", "grpc"])
def test_a_file_that_has_gone_since_is_named(
    authority: Authority, tmp_path: Path, transport: object
) -> None:
    ca = tmp_path / "ca"
    ca.write_bytes(authority.ca.read_bytes())
    credentials = Tls(ca=ca)
    ca.unlink()
    with pytest.raises(SpecError, match=f"cannot read the CA certificates from {ca}"):
        connect("localhost:1", credentials=credentials, transport=transport)  # type: ignore[arg-type]


def test_it_can_be_pickled_and_shows_paths_alone(authority: Authority, issued: Issued) -> None:
    tls = Tls(ca=authority.ca, cert=issued.cert, key=issued.key)
    assert pickle.loads(pickle.dumps(tls)) == tls
    assert str(issued.key) in repr(tls)
    assert "PRIVATE" not in repr(tls)


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
