"""Certificates for servers and clients that tests start."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.support.groups import need
from tests.support.stopwatch import patience

LOCALHOST = "DNS:localhost,IP:127.0.0.1,IP:::1"


def openssl(folder: Path, *arguments: str) -> None:
    """Runs the openssl command in a folder; skips the test if there is none."""
    need("certificates")
    subprocess.run(
        ["openssl", *arguments], check=True, capture_output=True, cwd=folder, timeout=patience(60)
    )


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A key and a certificate for localhost that vouches for itself."""
    key, certificate = folder / "key.pem", folder / "crt.pem"
    openssl(folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
            "-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost",
            "-addext", "subjectAltName=DNS:localhost")  # fmt: skip
    return key, certificate


class Issued(NamedTuple):
    """A certificate and its private key."""

    cert: Path
    key: Path


class Authority:
    """An authority of our own, which issues certificates.

    Args:
      folder: for its files.
      name: of the authority; two of the same name are told apart by their keys only.
    """

    def __init__(self, folder: Path, name: str = "root"):
        folder.mkdir()
        self._folder = folder
        self.ca = folder / "ca.crt"
        openssl(folder, "req", "-x509", *_NEW_KEY, "-days", "2", "-keyout", "ca.key", "-out",
                "ca.crt", "-subj", f"/CN={name}", "-addext",
                "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
        (folder / "index.txt").touch()
        (folder / "ca.cnf").write_text(_CONFIGURATION)

    def issue(self, name: str, names: str = LOCALHOST, is_expired: bool = False) -> Issued:
        """Issues a certificate for addresses; `name` is that of its files."""
        folder, issued = self._folder, Issued(
            self._folder / f"{name}.crt", self._folder / f"{name}.key"
        )  # fmt: skip
        openssl(folder, "req", *_NEW_KEY, "-keyout", issued.key.name, "-out", f"{name}.csr",
                "-subj", f"/CN={name}")  # fmt: skip
        (folder / f"{name}.ext").write_text(
            f"subjectAltName={names}\nauthorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n"
        )
        openssl(folder, "ca", "-batch", "-notext", "-config", "ca.cnf", "-cert", "ca.crt",
                "-keyfile", "ca.key", "-in", f"{name}.csr", "-out", issued.cert.name,
                "-extfile", f"{name}.ext", *(_PAST if is_expired else ("-days", "2")))  # fmt: skip
        return issued


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
# `openssl x509` takes dates from 3.4 on, and no negative number of days from 3.5 on.
_PAST = ("-startdate", "20200101000000Z", "-enddate", "20200102000000Z")
_CONFIGURATION = """
[ca]
default_ca = own
[own]
database = index.txt
new_certs_dir = .
default_md = sha256
rand_serial = yes
unique_subject = no
policy = any
[any]
commonName = supplied
"""
