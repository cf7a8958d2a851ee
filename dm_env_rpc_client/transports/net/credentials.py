"""TLS credentials from PEM files, and the checks that restrict plaintext to loopback."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

import grpc

from dm_env_rpc_client import arguments
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.transports.net.addresses import is_loopback

_log = logging.getLogger(__name__)

_Path: TypeAlias = str | os.PathLike[str]
_Made = TypeVar("_Made")

_SYSTEM = "system"
"""The flag value that selects the certificate authorities that this machine trusts."""

_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
_PRIVATE_KEY = b"PRIVATE KEY-----"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tls:
    """The PEM files for one end of a connection, passed as `credentials=` to clients or `serve`.

    The files are checked when the object is created. They are read again for each connection that
    a client opens and when a server starts. If they have changed, a server also reads them again
    for its next connection. If the changed files are invalid, the server logs a warning and keeps
    the former certificate.

    Attributes:
      ca: the certificates of the authorities, one of which must have issued the peer's certificate.
        With None, a client trusts the machine's authorities (over grpcio, those of grpcio), and a
        server requires no client certificates.
      cert: the certificate of this end, followed by the intermediate certificates. A server needs
        it; a client needs it if the server requires client certificates.
      key: the unencrypted private key of the certificate `cert`.

    Raises:
      SpecError: a file cannot be read or has the wrong contents, `cert` or `key` is given without
        the other, or the private key does not match the certificate.
    """

    ca: _Path | None = None
    cert: _Path | None = None
    key: _Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            given, missing = ("key", "cert") if self.cert is None else ("cert", "key")
            raise SpecError(f"Tls with a {given} file also needs a {missing} file")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Read once now: a wrong file is an error here and not at the first connection.
        self._trust(context)
        self._load(context)

    def client_context(self) -> ssl.SSLContext:
        """Return a client's TLS context, which checks the server's certificate and name."""
        with _reading(self.ca, "the CA certificates"):
            context = ssl.create_default_context(cafile=self.ca)
        self._load(context)
        return context

    def server_context(self) -> ssl.SSLContext:
        """Return a server's TLS context, which requires client certificates if `ca` is set.

        Raises:
          SpecError: `cert` is None.
        """
        self._check_server()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._trust(context)
        self._load(context)
        # Without ALPN gRPC clients end the handshake.
        context.set_alpn_protocols(["h2"])
        return context

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return a client's credentials for grpcio."""
        ca, cert, key = self._contents()
        return grpc.ssl_channel_credentials(ca, key, cert)

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return a server's credentials for grpcio, or raise SpecError if `cert` is None."""
        self._check_server()
        renewed = Renewed(self, self._server_configuration)
        # A CA at a server means that clients need a certificate (mutual TLS).
        return grpc.dynamic_ssl_server_credentials(renewed(), renewed, self.ca is not None)

    def _server_configuration(self) -> grpc.ServerCertificateConfiguration:
        self.server_context()  # Raises SpecError if the key does not match the certificate.
        ca, cert, key = self._contents()
        assert cert is not None
        assert key is not None
        return grpc.ssl_server_certificate_configuration([(key, cert)], ca)

    def _check_server(self) -> None:
        if self.cert is None:
            raise SpecError(
                "a server with TLS needs a certificate and its private key (cert and key)"
            )

    def _contents(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        return (
            None if self.ca is None else _read(self.ca, "the CA certificates", _CERTIFICATE),
            None if self.cert is None else _read(self.cert, "the certificate", _CERTIFICATE),
            None if self.key is None else _read(self.key, "the private key", _PRIVATE_KEY),
        )

    def _trust(self, context: ssl.SSLContext) -> None:
        if self.ca is not None:
            _read(self.ca, "the CA certificates", _CERTIFICATE)
            with _reading(self.ca, "the CA certificates"):
                context.load_verify_locations(self.ca)
            context.verify_mode = ssl.CERT_REQUIRED

    def _load(self, context: ssl.SSLContext) -> None:
        if self.cert is None or self.key is None:
            return
        _read(self.cert, "the certificate", _CERTIFICATE)
        _read(self.key, "the private key", _PRIVATE_KEY)

        def refuse() -> str:
            # Without this OpenSSL would ask for the password at the terminal.
            raise SpecError(
                f"the private key in {self.key} is encrypted; decrypt it, or pass an "
                "ssl.SSLContext that has loaded it"
            )

        try:
            context.load_cert_chain(self.cert, self.key, refuse)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                problem = "do not match"
            else:
                problem = "are damaged or of a type that OpenSSL does not accept"
            raise SpecError(
                f"the certificate in {self.cert} and the private key in {self.key} {problem}"
            ) from None


class Renewed(Generic[_Made]):
    """A function whose result is made from the files of a `Tls`, again after each change of them.

    If the changed files are invalid, such as between the writes of a certificate and its key, the
    former result stays, and the reason is logged once.

    Args:
      tls: the files.
      make: a function that makes the result, or raises SpecError if the files are invalid.
    """

    def __init__(self, tls: Tls, make: Callable[[], _Made]):
        self._files = [file for file in (tls.ca, tls.cert, tls.key) if file is not None]
        self._make = make
        # Taken before the files are read, so that a change in between is noticed later.
        self._seen = self._stamps()
        self._made = make()

    def __call__(self) -> _Made:
        stamps = self._stamps()
        if stamps != self._seen:
            self._seen = stamps
            try:
                self._made = self._make()
                _log.info("the TLS files have changed; new connections use them")
            except SpecError as error:
                _log.warning(
                    "the TLS files have changed, and new connections use the former ones: %s", error
                )
        return self._made

    def _stamps(self) -> list[object]:
        stamps: list[object] = []
        for file in self._files:
            try:
                found = os.stat(file)
            except OSError:
                stamps.append(None)
            else:
                stamps.append((found.st_mtime_ns, found.st_dev, found.st_ino, found.st_size))
        return stamps


GrpcCredentials: TypeAlias = grpc.ChannelCredentials
Credentials: TypeAlias = GrpcCredentials | ssl.SSLContext | Tls
ServerCredentials: TypeAlias = grpc.ServerCredentials | ssl.SSLContext | Tls


def check_credentials(credentials: Credentials | None) -> None:
    """Raise SpecError unless `credentials` are for a client, or None for plaintext."""
    _check(credentials, grpc.ChannelCredentials, "grpc.ssl_channel_credentials(...)", "ca={ca!r}")


def check_server_credentials(credentials: object) -> None:
    """Raise SpecError unless `credentials` are for a server, or None for plaintext."""
    files = "cert={ca!r}, key='server.key'"
    _check(credentials, grpc.ServerCredentials, "grpc.ssl_server_credentials(...)", files)


def _check(credentials: object, of_grpc: type, made_by: str, files: str) -> None:
    if credentials is None or isinstance(credentials, Tls | ssl.SSLContext | of_grpc):
        return
    # Text that names no file may be the contents of a file, and secret.
    is_file = isinstance(credentials, str) and credentials.endswith((".crt", ".pem", ".cer"))
    given = arguments.shown(credentials) if is_file or isinstance(credentials, type) else ""
    usual = "server.crt" if "cert" in files else "ca.crt"
    tls = f"Tls({files.format(ca=credentials if is_file else usual)})"
    raise SpecError(
        f"credentials must be a Tls, an ssl.SSLContext or {made_by}, or None for plaintext, got "
        f"{given or type(credentials).__name__}; did you mean credentials={tls}?"
    )


def is_local_credentials(credentials: Credentials | None) -> bool:
    """Return whether credentials are gRPC's local ones, which leave TCP connections unencrypted."""
    inner = getattr(credentials, "_credentials", None)
    return "Local" in type(inner).__name__


def check_encryption(address: str, credentials: Credentials | None, insecure: bool) -> None:
    """Raise SpecError for plaintext to another machine, unless `insecure` allows it."""
    # Loopback cannot be read by other machines.
    if is_loopback(address) or insecure:
        return
    if credentials is None:
        raise SpecError(
            f"plaintext is allowed for loopback only, but {address} is not a loopback address; "
            "pass credentials=Tls(ca=FILE) or insecure=True"
        )
    if is_local_credentials(credentials):
        raise SpecError(
            f"local credentials are allowed for loopback only, but {address} is not a loopback "
            "address; pass credentials=Tls(ca=FILE)"
        )


def tls_from_flags(ca: str | None, cert: str | None, key: str | None) -> Tls | None:
    """Return the TLS options that command-line flags specify.

    Args:
      ca: the same as for `Tls`, or "system" for the authorities that this machine trusts.
      cert: the same as for `Tls`.
      key: the same as for `Tls`.

    Returns:
      The options, or None if no flag was given.

    Raises:
      SpecError: the same errors as `Tls` raises.
    """
    if ca is None and cert is None and key is None:
        return None
    return Tls(ca=None if ca == _SYSTEM else ca, cert=cert, key=key)


def _read(path: _Path, what: str, expected: bytes) -> bytes:
    """Return the contents of a file, or raise a SpecError that does not quote the contents."""
    with _reading(path, what):
        contents = Path(path).read_bytes()
    # OpenSSL's own errors name neither the file nor the fault.
    if expected not in contents:
        raise SpecError(f"{path} does not contain {what} in PEM format")
    return contents


@contextlib.contextmanager
def _reading(path: _Path | None, what: str) -> Iterator[None]:
    try:
        yield
    except ssl.SSLError:
        # Without the cause, which may quote key material.
        raise SpecError(f"{what} in {path} are damaged") from None
    except OSError as error:
        raise SpecError(f"cannot read {what} from {path}: {error.strerror}") from None
