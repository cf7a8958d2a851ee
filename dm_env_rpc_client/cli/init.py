"""The commands `dm-env-rpc init` and `dm-env-rpc standalone`."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from dm_env_rpc_client import version
from dm_env_rpc_client.cli import options
from dm_env_rpc_client.cli.consoles import cell, console
from dm_env_rpc_client.cli.failures import UsageError
from dm_env_rpc_client.cli.group import examples
from dm_env_rpc_client.extras import DISTRIBUTION, install_command, origin

STANDALONE_EXAMPLES = examples(
    "dm-env-rpc standalone > dm_env_rpc_server.py",
    "python3.6 dm_env_rpc_server.py my_module:make_environment --address localhost:50051",
)
INIT_EXAMPLES = examples(
    "dm-env-rpc init my_environment",
    "dm-env-rpc init old_simulator --kind standalone",
    "dm-env-rpc init engine --kind cpp",
)


def standalone() -> None:
    """Print the one-file server, which runs on Python 3.6 or later with NumPy 1.13 or later.

    Use it to serve environments where this package cannot be installed.
    """
    from dm_env_rpc_client.launch.standalone import FILE

    sys.stdout.write(Path(FILE).read_text())


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Project(options.Group):
    """The project.

    Attributes:
      folder: New or empty folder.
      kind: python: with this package. standalone: with the server in one file, for Python 3.6 and
        later. cpp: in C++, with gRPC from the system's packages.
    """

    folder: Annotated[Path, typer.Argument(metavar="DIR")]
    kind: Literal["python", "standalone", "cpp"] = "python"


@options.with_options
def init(*, project: _Project) -> None:
    """Create a server project: an environment to edit, tests, a Dockerfile and a README."""
    folder, kind = project.folder, project.kind
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{cell(folder)} is not an empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    texts = _installing()
    for template in sorted((Path(__file__).parent / "projects" / kind).iterdir()):
        text = template.read_text()
        for name, value in texts.items():
            text = text.replace(name, value)
        (folder / template.name.removesuffix(".in")).write_text(text)
    if kind == "standalone":
        from dm_env_rpc_client.launch.standalone import FILE

        shutil.copy(FILE, folder)
    if kind == "cpp":
        (folder / "protocol.binpb").write_bytes(_protocol())
    console.print(f"created a project in {cell(folder)}; its README.md lists the commands")


def _installing() -> dict[str, str]:
    """Map the placeholders in the templates to the commands that install this package."""
    name = f"{DISTRIBUTION}[cli]"
    if version.PUBLISHED:
        image = f'RUN pip install --no-cache-dir "{name}"'
        return {"@INSTALL@": f'pip install "{name}"', "@INSTALL_IN_IMAGE@": image, "@WHEEL@": ""}
    found = origin()
    where = shlex.quote(found.what) if found else "CLONE_OF_DM_ENV_RPC_CLIENT"
    wheel = f"/tmp/{DISTRIBUTION.replace('-', '_')}-*.whl"
    lines = (
        "# `pip wheel` makes the file: see README.md.",
        f"COPY {os.path.basename(wheel)} /tmp/",
        f'RUN pip install --no-cache-dir "$(echo {wheel})[cli]"',
    )
    return {
        "@INSTALL@": install_command("cli") if found else f"pip install '{where}[cli]'",
        "@INSTALL_IN_IMAGE@": "\n".join(lines),
        "@WHEEL@": f"pip wheel --no-deps --wheel-dir . {where}\n",
    }


def _protocol() -> bytes:
    """Return the .proto files of the protocol and their dependencies, for use with protoc."""
    from google.protobuf import any_pb2, descriptor_pb2
    from google.rpc import status_pb2

    from dm_env_rpc_client._proto import dm_env_rpc_pb2

    files = descriptor_pb2.FileDescriptorSet()
    for module in (any_pb2, status_pb2, dm_env_rpc_pb2):
        files.file.add().ParseFromString(module.DESCRIPTOR.serialized_pb)
    return files.SerializeToString()
