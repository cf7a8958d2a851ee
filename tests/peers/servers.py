"""The servers and clients of all peers, by name. As a program, it builds what has to be built."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path

from tests.peers import cpp_peers
from tests.peers.building import GOOGLE_RPC, PROTOS, MissingToolchainError, build
from tests.peers.process import PeerProcess

_GO_TOOLS = (
    ("go version", "golang-go"),
    ("protoc --version", "protobuf-compiler"),
    ("command -v protoc-gen-go", "golang-goprotobuf-dev"),
    ("ls /usr/share/gocode/src/google.golang.org/grpc/server.go", "golang-google-grpc-dev"),
)
# Debian's packages, so no modules; the messages go to where the sources import them from.
_GO_SCRIPT = """
mkdir -p gopath/src/dm_env_rpc/v1 gopath/src/server/trial
any=Mgoogle/protobuf/any.proto=github.com/golang/protobuf/ptypes/any
status=Mgoogle/rpc/status.proto=google.golang.org/genproto/googleapis/rpc/status
protoc -I"$PROTOS" -I"$GOOGLE_RPC" --go_out="plugins=grpc,$any,$status:gopath/src" \\
  dm_env_rpc/v1/dm_env_rpc.proto
cp "$SOURCES"/*.go gopath/src/server
cp "$SOURCES"/trial/*.go gopath/src/server/trial
export GO111MODULE=off GOFLAGS= GOPATH="$PWD/gopath:/usr/share/gocode"
go build -o server server
go build -o trial server/trial
"""

_NODE_TOOLS = (("node --version", "nodejs"), ("npm --version", "npm"))
_NODE_SCRIPT = """
cp "$SOURCES"/*.js "$SOURCES"/package.json .
npm install --no-audit --no-fund --no-package-lock --loglevel=error || exit 75
"""


BUILT: dict[str, Callable[[], Path]] = {
    "cpp": cpp_peers.built,
    "go": functools.partial(build, "go", _GO_TOOLS, _GO_SCRIPT),
    "node": functools.partial(build, "node", _NODE_TOOLS, _NODE_SCRIPT),
}


def _go(*arguments: str | Path) -> PeerProcess:
    return PeerProcess([BUILT["go"]() / "server", *arguments])


def _node(*arguments: str | Path) -> PeerProcess:
    return PeerProcess(["node", BUILT["node"]() / "server.js", PROTOS, GOOGLE_RPC, *arguments])


SERVERS: dict[str, Callable[..., PeerProcess]] = {
    "cpp": cpp_peers.server,
    "go": _go,
    "node": _node,
}

TRIALS: dict[str, Callable[[], list[str | Path]]] = {
    "cpp": lambda: [BUILT["cpp"]() / "trial"],
    "go": lambda: [BUILT["go"]() / "trial"],
    "node": lambda: ["node", BUILT["node"]() / "trial.js", PROTOS, GOOGLE_RPC],
}
"""Commands of clients that try a server; an address and a number of bytes are to follow."""

if __name__ == "__main__":
    for built in BUILT.values():
        # The tests of a peer say what is missing, or why it cannot be built.
        with contextlib.suppress(MissingToolchainError, RuntimeError):
            built()
