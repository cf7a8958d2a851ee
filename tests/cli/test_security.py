"""TLS and tokens on the command line: flags, the environment, and files that are wrong."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import typer.testing

from dm_env_rpc_client import ConnectionLostError, Tls, connect, dm_env_rpc_pb2
from dm_env_rpc_client.server import Catch, Server, serve
from tests.cli.commands import address_of, ended, invoke, listening, started
from tests.support.certificates import Authority

TOKEN = "tok-91c3aa07e4"


class Files(NamedTuple):
    """Paths, as a command line gets them."""

    ca: str
    server_cert: str
    server_key: str
    client_cert: str
    client_key: str
    token: str

    @property
    def client_flags(self) -> list[str]:
        return [
            "--tls-ca", self.ca, "--tls-cert", self.client_cert, "--tls-key", self.client_key,
            "--token-file", self.token,
        ]  # fmt: skip

    @property
    def variables(self) -> dict[str, str]:
        return {
            "DM_ENV_RPC_TLS_CA": self.ca,
            "DM_ENV_RPC_TLS_CERT": self.client_cert,
            "DM_ENV_RPC_TLS_KEY": self.client_key,
            "DM_ENV_RPC_TOKEN_FILE": self.token,
        }


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("security")
    authority = Authority(folder / "authority")
    server, client = authority.issue("server"), authority.issue("client")
    token = folder / "token"
    token.write_text(f"{TOKEN}\n")
    paths = (authority.ca, server.cert, server.key, client.cert, client.key, token)
    return Files(*map(str, paths))


@pytest.fixture(scope="module")
def secured(files: Files) -> Iterator[Server]:
    """A server that requires a certificate and a token."""
    credentials = Tls(ca=files.ca, cert=files.server_cert, key=files.server_key)
    with serve(Catch, credentials=credentials, token=TOKEN) as server:
        yield server
        assert server.errors == []


def run(
    *arguments: str, code: int = 0, variables: dict[str, str] | None = None
) -> typer.testing.Result:
    """Runs a command; no output has the token."""
    result = invoke(*arguments, code=code, environment=variables)
    assert TOKEN not in result.output
    assert "PRIVATE KEY" not in result.output
    return result


COMMANDS = [
    ["inspect", "{}"],
    ["run", "{}", "-n", "1"],
    ["bench", "{}", "--seconds", "0.1"],
    ["bench", "{}", "--seconds", "0.1", "--transport", "grpc"],
    ["properties", "list", "{}"],
    ["properties", "list", "{}", "--new-world"],
    ["check", "{}", "--only", "an_unknown_world"],
    ["health", "{}"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("by_flags", [True, False], ids=["flags", "environment"])
def test_every_command_reaches_a_server_with_tls_and_a_token(
    files: Files, secured: Server, words: list[str], by_flags: bool
) -> None:
    filled = [word.format(secured.address) for word in words]
    if by_flags:
        run(*filled, *files.client_flags)
    else:
        run(*filled, variables=files.variables)


def test_a_wrong_token_is_an_error_that_does_not_show_it(
    files: Files, secured: Server, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("another-token")
    flags = [*files.client_flags[:-1], str(wrong)]
    result = run("inspect", secured.address, *flags, code=3)
    assert "UNAUTHENTICATED" in result.output
    assert "another-token" not in result.output


def test_the_authorities_of_the_machine_do_not_trust_the_server(
    files: Files, secured: Server
) -> None:
    result = run("inspect", secured.address, "--tls-ca", "system", code=3)
    assert "certificate verify failed" in result.output


def test_serve_with_tls_and_a_token(files: Files) -> None:
    process = started(
        "serve", "catch", "--address", "localhost:0", "--json", "--tls-ca", files.ca,
        "--tls-cert", files.server_cert, "--tls-key", files.server_key, "--token-file", files.token,
    )  # fmt: skip
    address = address_of(process)
    run("inspect", address, *files.client_flags)
    credentials = Tls(ca=files.ca, cert=files.client_cert, key=files.client_key)
    with (
        connect(address, credentials=credentials) as connection,
        pytest.raises(ConnectionLostError, match="UNAUTHENTICATED"),
    ):
        connection.send(dm_env_rpc_pb2.CreateWorldRequest())
    assert TOKEN not in ended(process)


def test_a_server_that_the_command_starts_itself_is_reached_in_plaintext(files: Files) -> None:
    assert "1 episodes" in run("run", "-n", "1", variables=files.variables).output


WRONG_FILES = [
    (["--tls-ca", "{missing}"], "cannot read the CA certificates from {missing}: No such file"),
    (["--tls-ca", "{folder}"], "cannot read the CA certificates from {folder}: Is a directory"),
    (["--tls-ca", "{text}"], "{text} does not contain the CA certificates in PEM format"),
    (["--tls-ca", "{damaged}"], "the CA certificates in {damaged} are damaged"),
    (["--tls-cert", "{cert}"], "Tls with a cert file also needs a key file"),
    (["--tls-key", "{key}"], "Tls with a key file also needs a cert file"),
    (["--tls-cert", "{cert}", "--tls-key", "{missing}"], "cannot read the private key"),
    (["--tls-cert", "{cert}", "--tls-key", "{cert}"], "{cert} does not contain the private key"),
    (["--tls-cert", "{cert}", "--tls-key", "{other}"], "do not match"),
    (["--token-file", "{missing}"], "cannot read the token from {missing}: No such file"),
    (["--token-file", "{empty}"], "{empty} does not contain a token"),
    (["--token-file", "{binary}"], "{binary} does not contain a token"),
    (["--token-file", "{cert}"], "{cert} does not contain a token"),
]


@pytest.mark.parametrize("base", [["inspect"], ["check"], ["serve", "catch", "--address"]])
@pytest.mark.parametrize(("flags", "said"), WRONG_FILES, ids=lambda value: str(value[:40]))
def test_a_wrong_file_is_an_error_before_anything_is_sent(
    files: Files, tmp_path: Path, base: list[str], flags: list[str], said: str
) -> None:
    places = {
        "missing": str(tmp_path / "missing"),
        "folder": str(tmp_path),
        "text": str(tmp_path / "text"),
        "damaged": str(tmp_path / "damaged"),
        "empty": str(tmp_path / "empty"),
        "binary": str(tmp_path / "binary"),
        "cert": files.client_cert,
        "key": files.client_key,
        "other": files.server_key,
    }
    Path(places["text"]).write_text("no certificate\n")
    Path(places["empty"]).write_text(" \n")
    Path(places["binary"]).write_bytes(b"\xff\xfe\x00")
    Path(places["damaged"]).write_text(
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    )
    connected: list[socket.socket] = []
    with listening(connected.append) as address:
        filled = [flag.format(**places) for flag in flags]
        result = run(*base, address, *filled, code=2)
    output = " ".join(result.output.split())
    assert said.format(**places) in output
    assert connected == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--tls-ca {ca}", "a server with TLS needs a certificate"),
        ("--protocol gym-socket --token-file {token}", "supports neither TLS nor tokens"),
        ("--protocol gym-socket --tls-ca {ca}", "supports neither TLS nor tokens"),
    ],
)
def test_what_serve_cannot_secure_is_refused(files: Files, options: str, said: str) -> None:
    words = options.format(ca=files.ca, token=files.token).split()
    assert said in " ".join(run("serve", "catch", *words, code=2).output.split())
