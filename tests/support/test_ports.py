"""The usual ports, which servers take that are given none, are of no test."""

from __future__ import annotations

from pathlib import Path

import pytest

from dm_env_rpc_client import make
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server
from dm_env_rpc_client.server import Catch, serve
from tests.support import programs
from tests.support.ports import USUAL, usual_ports_held


@pytest.mark.parametrize(
    ("port", "arguments"),
    [
        (50051, ["-m", "dm_env_rpc_client", "serve", "catch"]),
        (5001, ["-m", "dm_env_rpc_client", "serve", "catch", "--protocol", "gym-socket"]),
        (50052, ["-m", "dm_env_rpc_client", "record", "new.mcap", "--upstream", "{upstream}"]),
        (50051, ["-m", "dm_env_rpc_client", "replay", "{recording}"]),
        (50051, [dm_env_rpc_server.__file__, "dm_env_rpc_client.server:Catch"]),
    ],
    ids=["serve", "gym-socket", "record", "replay", "one file"],
)
def test_commands_that_are_given_no_address_take_a_usual_port(
    port: int, arguments: list[str], tmp_path: Path
) -> None:
    assert port in USUAL
    recording = tmp_path / "run.mcap"
    with serve(Catch) as server, usual_ports_held():
        with make(server.address, record=recording) as env:
            env.reset()
        given = [part.format(upstream=server.address, recording=recording) for part in arguments]
        finished = programs.run_python(
            *given, code=1, folder=tmp_path, environment={"PYTHONPATH": str(programs.ROOT)}
        )
    said = finished.stderr.strip().splitlines()[-1]
    assert str(port) in said
    assert "Address already in use" in said
