"""TLS from files: what is read and when, and what is wrong with it. Connections are in row 46."""

from __future__ import annotations

import concurrent.futures
import pickle
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from dm_env_rpc_client import SpecError, Tls, connect
from dm_env_rpc_client.server import Catch, serve
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
