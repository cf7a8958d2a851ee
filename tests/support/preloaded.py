"""What the process imports whose forks are servers and commands of tests."""

from __future__ import annotations

import importlib
import os

# As the command does before it imports grpc.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

for name in (
    "dm_env_rpc_client.cli.serving.sources",
    "dm_env_rpc_client.environment.worlds",
    "dm_env_rpc_client.server.serving",
    "pytest",
    "tests.support.environments",
    "tests.support.scripted",
):
    importlib.import_module(name)

# The command line imports more once a command is looked for.
app = importlib.import_module("dm_env_rpc_client.cli.app").app
importlib.import_module("typer.testing").CliRunner().invoke(app, ["run", "--no-such-option"])
