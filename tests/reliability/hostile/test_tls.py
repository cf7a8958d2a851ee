"""Row 46: TLS and tokens. Each failure is told at once, is never retried when it is final, and no
text shows a secret.

Certificates are issued by an authority of the tests' own.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import shutil
import socket
import ssl
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from dm_env_rpc_client import (
    ConnectionLostError,
    SpecError,
    Tls,
    connect,
    dm_env_rpc_pb2,
    make,
)
from dm_env_rpc_client.server import Catch, Server, serve
from dm_env_rpc_client.transports.endpoint import Transport
from dm_env_rpc_client.transports.grpc.async_stream import AsyncGrpcStream
from dm_env_rpc_client.transports.net import status
from tests.reliability.scorecard import counts
from tests.support.both_transports import forced
from tests.support.certificates import Authority, Issued, openssl
from tests.support.scripted import answering_socket, settles_async
from tests.support.stopwatch import time_limit
from tests.transports import raw_server

TIMEOUT = 60.0
"""What final errors must not wait for."""

AT_ONCE = 3.0
"""A server that hangs up in the handshake, as one that starts may do, is tried for a second."""

TOKEN = "tok-5f1d8c0ab2"
PASSWORD = "pass-77aa01c9"


class Files(NamedTuple):
    """Certificates of an authority that the clients trust, and of another one."""

    authority: Authority
    server: Issued
    client: Issued
    wrong_host: Issued
    expired: Issued
    of_other: Issued
    secrets: tuple[str, ...]

    @property
    def trusting(self) -> Tls:
        return Tls(ca=self.authority.ca)

    @property
    def with_certificate(self) -> Tls:
        return Tls(ca=self.authority.ca, cert=self.client.cert, key=self.client.key)

    @property
    def stranger(self) -> Tls:
        return Tls(ca=self.authority.ca, cert=self.of_other.cert, key=self.of_other.key)

    @property
    def plaintext(self) -> None:
        return None


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("tls")
    authority, other = Authority(folder / "own"), Authority(folder / "other")
    issued = {
        "server": authority.issue("server"),
        "client": authority.issue("client"),
        "wrong_host": authority.issue("wrong_host", "DNS:example.org"),
        "expired": authority.issue("expired", is_expired=True),
        "of_other": other.issue("of_other"),
    }
    # The end of the first line: what is before it is the same in all keys.
    of_keys = {each.key.read_text().splitlines()[1][-16:] for each in issued.values()}
    assert len(of_keys) == len(issued)
    return Files(authority, **issued, secrets=(TOKEN, PASSWORD, *of_keys))


@pytest.fixture(autouse=True)
def no_secret_in_logs(
    files: Files, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> Iterator[None]:
    caplog.set_level(logging.DEBUG)
    yield
    printed = capfd.readouterr()
    check_texts(files, caplog.text, printed.out, printed.err)


def check_texts(files: Files, *texts: str) -> None:
    """Asserts that no text has a secret."""
    for text in texts:
        for secret in files.secrets:
            assert secret not in text, "a text shows a secret"


def served(issued: Issued, ca: Path | None = None, **options: Any) -> Server:
    return serve(Catch, credentials=Tls(cert=issued.cert, key=issued.key, ca=ca), **options)


CREATE = dm_env_rpc_pb2.CreateWorldRequest()
ask = functools.partial(raw_server.ask, request=CREATE, timeout=TIMEOUT, debug=True)


def fails_at_once(files: Files, address: str, is_async: bool, said: str, **how: Any) -> None:
    """Asserts that `ask` ends soon with an error that says what it should, and no secret."""
    with time_limit(AT_ONCE), pytest.raises(ConnectionLostError, match=said) as caught:
        ask(address, is_async, **how)
    error = caught.value
    assert address in str(error)
    told = "".join(traceback.format_exception(error))
    check_texts(files, str(error), repr(error), told)


@contextlib.contextmanager
def tls_socket(context: ssl.SSLContext) -> Iterator[tuple[str, list[int]]]:
    """A server of OpenSSL that reads only; yields its address and the number of connections."""
    accepted = [0]

    def script(connected: socket.socket) -> None:
        accepted[0] += 1
        with context.wrap_socket(connected, server_side=True) as encrypted:
            while encrypted.recv(1 << 16):
                pass

    with answering_socket(script) as address:
        yield address, accepted


@contextlib.contextmanager
def tried_once(accepted: list[int]) -> Iterator[None]:
    """Asserts that a block connects once, as far as the package decides that.

    grpcio connects again, whatever its caller wants, 0.1 s after it has told of a failure, unless
    the channel is closed by then; on a busy machine it may not be. That this fails at once, and not
    after the timeout of connecting, is asserted by `fails_at_once`.
    """
    began = time.monotonic()
    yield
    more = (time.monotonic() - began) / 0.1 if forced() == "grpc" else 0
    assert 1 <= accepted[0] <= 1 + more


pytestmark = pytest.mark.row(46)

is_async = pytest.mark.parametrize("is_async", [False, True], ids=["threads", "asyncio"])


@contextlib.contextmanager
def serving(files: Files, kind: str, certificate: str) -> Iterator[tuple[str, list[int]]]:
    """A server of this package, or one of OpenSSL that shows a certificate; see `FAILURES`.

    Yields:
      Its address, and how often it was connected to, which the first does not tell.
    """
    issued: Any = getattr(files, certificate) if certificate else None
    ca = files.authority.ca if "wants one" in kind else None
    own = Tls(cert=issued.cert, key=issued.key, ca=ca) if issued else None
    if "ours" in kind:
        with serve(Catch, credentials=own) as server:
            yield server.address, [1]
            assert server.world_count == 0
        return
    assert own is not None
    context = own.server_context()
    if "1.2" in kind:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if "no ALPN" in kind:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(issued.cert, issued.key)
    with tls_socket(context) as (address, accepted):
        yield address.replace("127.0.0.1", "localhost"), accepted


NO_HOST = r"(?i)host ?name|not in peer certificate"
EXPIRED = "certificate has expired|CERTIFICATE_VERIFY_FAILED"
UNKNOWN = "unable to get local issuer certificate|CERTIFICATE_VERIFY_FAILED"
NONE_GIVEN = "might require a client certificate"
NO_HTTP2 = r"does not offer HTTP/2 \(h2\)"
PLAINTEXT = "the server expects TLS, but this connection is plaintext"
NO_TLS = "the server does not speak TLS"

# The kind of the server and its certificate, what the client has, what it is told, and whether
# nothing is tried again.
FAILURES = [
    ("OpenSSL", "wrong_host", "trusting", NO_HOST, True),
    ("OpenSSL", "expired", "trusting", EXPIRED, True),
    ("OpenSSL", "of_other", "trusting", UNKNOWN, True),
    ("ours, wants one", "server", "trusting", NONE_GIVEN, True),
    ("OpenSSL, wants one", "server", "trusting", NONE_GIVEN, True),
    ("OpenSSL, wants one, 1.2", "server", "trusting", NONE_GIVEN, True),
    ("OpenSSL, wants one", "server", "stranger", NONE_GIVEN, True),
    ("OpenSSL, wants one, 1.2", "server", "stranger", NONE_GIVEN, True),
    ("OpenSSL, no ALPN", "server", "trusting", NO_HTTP2, False),
    ("ours, wants one", "server", "plaintext", PLAINTEXT, False),
    ("OpenSSL", "server", "plaintext", PLAINTEXT, False),
    ("ours", "", "with_certificate", NO_TLS, False),
]


@is_async
@pytest.mark.parametrize(("kind", "certificate", "client", "said", "is_final"), FAILURES)
def test_row_46_a_failure_of_tls_is_told_at_once(
    files: Files, is_async: bool, kind: str, certificate: str, client: str, said: str,
    is_final: bool,
) -> None:  # fmt: skip
    with contextlib.ExitStack() as stack:
        address, accepted = stack.enter_context(serving(files, kind, certificate))
        if is_final:
            stack.enter_context(tried_once(accepted))
        how = {"credentials": getattr(files, client), "token": TOKEN}
        fails_at_once(files, address, is_async, said, **how)


@is_async
@pytest.mark.parametrize("processes", [None, 1])
@pytest.mark.parametrize("kind", ["plaintext", "TLS", "TLS of both"])
def test_row_46_the_right_certificate_and_token_are_let_in(
    files: Files, is_async: bool, kind: str, processes: int | None
) -> None:
    credentials = {
        "plaintext": (None, None),
        "TLS": (Tls(cert=files.server.cert, key=files.server.key), files.trusting),
        "TLS of both": (
            Tls(cert=files.server.cert, key=files.server.key, ca=files.authority.ca),
            files.with_certificate,
        ),
    }
    of_server, of_client = credentials[kind]
    options: dict[str, Any] = {"credentials": of_server, "processes": processes}
    with serve(Catch, token=TOKEN, **options) as server:
        ask(server.address, is_async, credentials=of_client, token=TOKEN)
        fails_at_once(files, server.address, is_async, "UNAUTHENTICATED", credentials=of_client)
        assert server.stats().refused_streams == 1


@pytest.mark.parametrize("of_server", ["http2", "grpc"])
@counts(3, 50)
def test_row_46_a_server_shows_a_new_certificate_without_a_restart(
    files: Files,
    tmp_path: Path,
    count: int,
    of_server: Transport,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def rotate(number: int) -> str:
        issued = files.authority.issue(f"server{number}")
        shutil.copy(issued.cert, tmp_path / "server.crt")
        shutil.copy(issued.key, tmp_path / "server.key")
        return (tmp_path / "server.crt").read_text()

    expected = rotate(0)
    shown = Tls(ca=files.authority.ca, cert=tmp_path / "server.crt", key=tmp_path / "server.key")
    own = files.with_certificate
    with (
        serve(Catch, credentials=shown, transport=of_server) as server,
        make(server.address, credentials=own, timeout=TIMEOUT) as env,
    ):
        env.reset()
        for number in range(1, count + 1):
            assert presented(server.address, own) == expected
            # A pair that does not match, as between the writes of two files, changes nothing.
            shutil.copy(files.authority.issue(f"half{number}").cert, tmp_path / "server.crt")
            caplog.clear()
            for _ in range(2):
                assert presented(server.address, own) == expected
            warned = [each.message for each in caplog.records if "TLS" in each.message]
            assert len(warned) == 1
            assert "do not match" in warned[0]
            expected = rotate(number)
            # Connections that are open stay.
            env.step({"paddle": 1})
        assert presented(server.address, own) == expected


def presented(address: str, own: Tls) -> str:
    """Returns the certificate that a server presents, in the form PEM."""
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 10) as plain,
        own.client_context().wrap_socket(plain, server_hostname=host) as encrypted,
    ):
        found = encrypted.getpeercert(binary_form=True)
    assert found is not None
    return ssl.DER_cert_to_PEM_cert(found)


@is_async
@pytest.mark.parametrize(
    ("how", "said"),
    [
        pytest.param({}, "requires a token", id="none"),
        pytest.param({"token": "another"}, "not valid", id="another"),
        pytest.param({"token": TOKEN[:-1]}, "not valid", id="shorter"),
        pytest.param({"token": TOKEN + "a"}, "not valid", id="longer"),
        pytest.param({"token": TOKEN.upper()}, "not valid", id="upper case"),
        pytest.param({"metadata": [("authorization", "")]}, "not valid", id="empty"),
        pytest.param({"metadata": [("authorization", "Bearer ")]}, "not valid", id="bare"),
        pytest.param({"metadata": [("authorization", TOKEN)]}, "not valid", id="no scheme"),
        pytest.param({"metadata": [("authorization", f"Basic {TOKEN}")]}, "not valid", id="basic"),
        pytest.param({"metadata": [("x-token", TOKEN)]}, "requires a token", id="elsewhere"),
        pytest.param(
            {"metadata": [("authorization", f"Bearer {TOKEN}")] * 2}, "not valid", id="twice"
        ),
    ],
)
def test_row_46_any_other_token_is_refused(
    files: Files, is_async: bool, how: dict[str, Any], said: str
) -> None:
    with serve(Catch, token=TOKEN) as server:
        fails_at_once(files, server.address, is_async, f"UNAUTHENTICATED: .*{said}", **how)
        assert server.world_count == 0
        assert server.errors == []


async def test_row_46_a_write_that_failed_does_not_hide_why() -> None:
    with serve(Catch, token=TOKEN) as server:
        async with grpc.aio.insecure_channel(server.address) as channel:
            stream = AsyncGrpcStream(channel, [("authorization", "Bearer another")])
            # As grpc.aio does if a write fails before the status has arrived.
            stream._call._cython_call.set_internal_error("scripted")
            asyncio.get_running_loop().add_reader(stream.fileno(), stream.receive)
            assert await settles_async(stream.has_unread)
            asyncio.get_running_loop().remove_reader(stream.fileno())
            with pytest.raises(ConnectionLostError, match=r"UNAUTHENTICATED: .*not valid"):
                stream.take()


def test_row_46_any_client_is_told_and_may_write_the_scheme_as_it_likes() -> None:
    with serve(Catch, token=TOKEN) as server, grpc.insecure_channel(server.address) as channel:
        process: Any = channel.stream_stream(status.PROCESS)
        refused = process(iter([b""]), timeout=TIMEOUT)
        assert refused.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "authorization: Bearer <token>" in refused.details()
        metadata = [("authorization", f"bearer {TOKEN}")]
        request = dm_env_rpc_pb2.EnvironmentRequest(
            leave_world=dm_env_rpc_pb2.LeaveWorldRequest()
        ).SerializeToString()
        answered = process(iter([request]), metadata=metadata, timeout=TIMEOUT)
        answer = dm_env_rpc_pb2.EnvironmentResponse.FromString(next(answered))
        assert answer.HasField("leave_world")
        answered.cancel()


def test_row_46_a_token_does_not_leave_the_machine_in_plaintext() -> None:
    with time_limit(AT_ONCE), pytest.raises(SpecError, match="plaintext") as caught:
        connect("192.0.2.1:1", token=TOKEN, timeout=TIMEOUT)
    assert TOKEN not in "".join(traceback.format_exception(caught.value, limit=-1))


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"token": f"{TOKEN} {TOKEN}"}, id="spaces"),
        pytest.param({"token": f"{TOKEN}\n"}, id="line break"),
        pytest.param({"token": f"{TOKEN}é"}, id="not ASCII"),
        pytest.param({"token": TOKEN.encode()}, id="bytes"),
        pytest.param({"metadata": [f"authorization: {TOKEN}"]}, id="no pairs"),
        pytest.param({"metadata": {"authorization": TOKEN}}, id="a dict"),
        pytest.param(
            {"token": TOKEN, "metadata": [("authorization", f"Bearer {TOKEN}")]}, id="both"
        ),
    ],
)
def test_row_46_a_malformed_token_is_refused_without_being_shown(how: dict[str, Any]) -> None:
    with time_limit(AT_ONCE), pytest.raises(SpecError) as caught:
        connect("localhost:1", timeout=TIMEOUT, **how)
    assert TOKEN not in f"{caught.value} {caught.value!r}"
    for token in {"", " ", 5, how.get("token", "")} - {TOKEN}:
        with pytest.raises(SpecError, match="a token must consist of") as caught:
            serve(Catch, token=token)
        assert TOKEN not in f"{caught.value} {caught.value!r}"


def test_row_46_the_password_of_a_key_is_in_no_text(files: Files, tmp_path: Path) -> None:
    key = tmp_path / "encrypted.key"
    openssl(tmp_path, "pkey", "-in", str(files.client.key), "-out", str(key), "-aes256",
            "-passout", f"pass:{PASSWORD}")  # fmt: skip
    context = ssl.create_default_context(cafile=files.authority.ca)
    context.load_cert_chain(files.client.cert, key, PASSWORD)
    with served(files.server, files.authority.ca) as server:
        ask(server.address, False, credentials=context, transport="http2")
    with served(files.expired, files.authority.ca) as server:
        how = {"credentials": context, "transport": "http2"}
        fails_at_once(files, server.address, False, "expired", **how)
