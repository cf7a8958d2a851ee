"""Generates dm_env_rpc_client/_proto from the .proto files beside this script.

    python protos/generate.py [DIRECTORY]

Writes messages and their .pyi stubs into DIRECTORY, or into the package when none
is given. It needs grpcio-tools 1.62.3, in an environment of its own: code that a newer
protoc generates refuses to load on older protobuf runtimes, while this one's loads
on every runtime that pyproject.toml admits. No service stubs are made; the one
method of the protocol is called by its path.
"""

from __future__ import annotations

import importlib.metadata
import pathlib
import re
import sys
import tempfile

GRPCIO_TOOLS_VERSION = "1.62.3"
PROTOS = pathlib.Path(__file__).resolve().parent
PACKAGE = PROTOS.parent / "dm_env_rpc_client" / "_proto"
SOURCES = (
    "dm_env_rpc/v1/dm_env_rpc.proto",
    "dm_env_rpc/v1/extensions/properties.proto",
    "dm_env_rpc_client/line_1_0.proto",
)

# protoc derives Python module names from .proto paths. These paths are part of the
# descriptors and cannot change, so it is the imports that move.
_IMPORT = re.compile(r"^from dm_env_rpc\.v1 import (dm_env_rpc_pb2)", re.MULTILINE)


def generate(destination: pathlib.Path) -> None:
    """Runs protoc on SOURCES and lays the modules flat into `destination`."""
    import grpc_tools
    from google.rpc import status_pb2
    from grpc_tools import protoc

    version = importlib.metadata.version("grpcio-tools")
    if version != GRPCIO_TOOLS_VERSION:
        raise SystemExit(f"generate.py needs grpcio-tools {GRPCIO_TOOLS_VERSION}, found {version}")
    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    google_rpc = pathlib.Path(status_pb2.__file__).parents[2]
    with tempfile.TemporaryDirectory() as scratch:
        arguments = [
            "protoc",
            f"--proto_path={PROTOS}",
            f"--proto_path={google_rpc}",
            f"--proto_path={well_known}",
            f"--python_out={scratch}",
            f"--pyi_out={scratch}",
            *SOURCES,
        ]
        if protoc.main(arguments) != 0:
            raise SystemExit("protoc failed")
        destination.mkdir(parents=True, exist_ok=True)
        for source in SOURCES:
            stem = source.removesuffix(".proto") + "_pb2"
            for suffix in (".py", ".pyi"):
                generated = pathlib.Path(scratch, stem + suffix)
                text = _IMPORT.sub(
                    r"from dm_env_rpc_client._proto import \1", generated.read_text()
                )
                (destination / generated.name).write_text(text)


if __name__ == "__main__":
    generate(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE)
