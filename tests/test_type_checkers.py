"""What type checkers find in a user's program: each slip, and nothing where there are none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("basedpyright")

RIGHT = """
from collections.abc import Mapping
from typing import Any

from typing_extensions import assert_type

import dm_env_rpc_client
from dm_env_rpc_client import BatchedEnvironment, Connection, DmEnvAdaptor, connect, make
from dm_env_rpc_client.adaptors.gymnasium.vector_env import RemoteVectorEnv


class Counting(DmEnvAdaptor):
    def reset(self, settings: Mapping[str, Any] | None = None) -> Any:
        return super().reset(settings)


with make("localhost:50051", {"seed": 1}, request_timeout=3, nested_tensors=False) as env:
    assert_type(env, DmEnvAdaptor)
    env.reset()
    env.step({"paddle": 1})
with BatchedEnvironment("localhost:50051", 4, transport="http2", token=None) as batch:
    assert_type(batch, BatchedEnvironment)
with RemoteVectorEnv("localhost:50051", 4, insecure=True) as vector:
    assert_type(vector, RemoteVectorEnv)
with connect("localhost:50051", request_timeout=3) as connection:
    assert_type(connection, Connection)
    joined = dm_env_rpc_client.join_world(connection, "world", unwrap_single=True)
    assert_type(joined, DmEnvAdaptor)
"""

WRONG = """
import dm_env_rpc_client
from dm_env_rpc_client import BatchedEnvironment, connect, join_world, make, make_async
from dm_env_rpc_client.adaptors.gymnasium.vector_env import RemoteVectorEnv
from dm_env_rpc_client.server import Catch, serve

make("localhost:50051", requst_timeout=3)
make("localhost:50051", nested_tensor=False)
BatchedEnvironment("localhost:50051", 4, transprot="http2")
RemoteVectorEnv("localhost:50051", 4, insecrue=True)
make_async("localhost:50051", time_out=3)
connect("localhost:50051", tokn="secret")
serve(Catch, proceses=2)
with make("localhost:50051") as env:
    env.rest()
    env.reset(seed=1)
    print(env.action_space)
with BatchedEnvironment("localhost:50051", 4) as batch:
    batch.stepp({"paddle": 1})
with connect("localhost:50051") as connection:
    join_world(connection, "world", unwrap_singel=True)
from dm_env_rpc_client import conect
dm_env_rpc_client.conect("localhost:50051")
"""

LINES = [7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 19, 21, 22, 23]


def mypy(program: Path) -> list[int]:
    """Returns the lines in which mypy --strict finds errors."""
    command = [
        *(sys.executable, "-m", "mypy", "--strict", "--config-file="),
        *("--no-error-summary", "--show-error-codes", f"--cache-dir={program.parent}/cache"),
        str(program),
    ]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert checked.returncode in (0, 1), checked.stderr
    found = [line for line in checked.stdout.splitlines() if line.startswith(f"{program}:")]
    return sorted({int(line.split(":")[1]) for line in found if ": error:" in line})


def pyright(program: Path) -> list[int]:
    """Returns the lines in which pyright finds errors; basedpyright brings its own Node."""
    config = program.parent / "pyrightconfig.json"
    config.write_text(json.dumps({"typeCheckingMode": "standard"}))
    checked = subprocess.run(
        [
            *(sys.executable, "-m", "basedpyright", "--outputjson", "-p", str(config)),
            *("--pythonpath", sys.executable, str(program)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    found = json.loads(checked.stdout)["generalDiagnostics"]
    return sorted(
        {each["range"]["start"]["line"] + 1 for each in found if each["severity"] == "error"}
    )


@pytest.mark.parametrize("check", [mypy, pyright])
def test_a_right_program_is_right_and_each_slip_is_an_error(
    check: Callable[[Path], list[int]], tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(RIGHT)
    assert check(program) == []
    program.write_text(WRONG)
    assert check(program) == LINES
