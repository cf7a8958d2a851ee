"""The peers in C++, on Debian's libgrpc++."""

from __future__ import annotations

import functools
from pathlib import Path

from tests.peers.building import build
from tests.peers.process import PeerProcess

_TOOLS = (
    ("g++ --version", "g++"),
    ("make --version", "make"),
    ("pkg-config --modversion grpc++", "libgrpc++-dev"),
    ("protoc --version", "protobuf-compiler"),
    ("pkg-config --modversion protobuf", "libprotobuf-dev"),
    ("command -v grpc_cpp_plugin", "protobuf-compiler-grpc"),
)
_SCRIPT = """
make -s -j2 -f "$SOURCES/Makefile" SOURCES="$SOURCES" PROTOS="$PROTOS" GOOGLE_RPC="$GOOGLE_RPC"
"""


built = functools.partial(build, "cpp", _TOOLS, _SCRIPT)


def server(*arguments: str | Path) -> PeerProcess:
    """A dm_env_rpc server; prints its address."""
    return PeerProcess([built() / "server", *arguments])


def bare_client(address: str, payload: str, size: int = 0) -> PeerProcess:
    """A gRPC client that measures when it is told to; see client.cc."""
    return PeerProcess([built() / "client", address, payload, str(size)])


def tcp_server() -> PeerProcess:
    """A TCP server that answers so many bytes with so many; prints its address."""
    return PeerProcess([built() / "tcp_server"])
