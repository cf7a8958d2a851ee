"""Certificates for servers that tests start."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.groups import need

__all__ = ["openssl", "self_signed"]


def openssl(folder: Path, *arguments: str) -> None:
    """Runs the openssl command in a folder; skips the test if there is none."""
    need("certificates")
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder, timeout=60)


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A key and a certificate for localhost that vouches for itself."""
    key, certificate = folder / "key.pem", folder / "crt.pem"
    openssl(folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
            "-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost",
            "-addext", "subjectAltName=DNS:localhost")  # fmt: skip
    return key, certificate
