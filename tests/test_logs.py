"""What is logged, by whom and at which level, as the guide says."""

from __future__ import annotations

import logging
import re

import pytest

import dm_env_rpc_client
from dm_env_rpc_client import connect, create_world, make
from dm_env_rpc_client.server import Catch, serve
from dm_env_rpc_client.testing import ScriptedServer
from tests.cli.commands import command
from tests.support.programs import run_python
from tests.support.scripted import settles

TOKEN = "tok-5c0e72d1"
HERE = r"(localhost|ipv4:127.0.0.1|ipv6:%5B::1%5D):\d+"


def lines(caplog: pytest.LogCaptureFixture, least: int) -> list[str]:
    """What was logged from a level on: the logger below the package, the level, the text."""
    return [
        f"{record.name.removeprefix('dm_env_rpc_client.')} {record.levelname}: {message}"
        for record in caplog.records
        if record.levelno >= least and (message := re.sub(HERE, "HERE", record.getMessage()))
    ]


def test_a_session_that_goes_well(caplog: pytest.LogCaptureFixture) -> None:
    # A command that ran in this process may have set other levels.
    for name in ("", ".server", ".server.serving", ".server.clients"):
        caplog.set_level(logging.DEBUG, f"dm_env_rpc_client{name}")
    with serve(Catch, token=TOKEN) as server:
        with make(server.address, token=TOKEN, metadata=[("key", "v-secret")]) as env:
            env.reset()
            for _ in range(100):
                env.step({"paddle": 1})
        settles(lambda: "disconnected" in caplog.text)
    assert lines(caplog, logging.INFO) == [
        "server.serving INFO: serving at HERE",
        "server.clients INFO: HERE connected",
        "server.clients INFO: HERE disconnected",
        "server.serving INFO: stopped serving at HERE",
    ]
    told = lines(caplog, logging.DEBUG)
    for line in (
        "client.connecting DEBUG: connected to HERE",
        "server DEBUG: HERE sends a create_world request",
        "server DEBUG: HERE sends a join_world request",
        "server DEBUG: HERE sends a leave_world request",
        "server DEBUG: HERE sends a destroy_world request",
        "server.worlds.world_registry DEBUG: world 'world-1' is created",
        "server.worlds.world_registry DEBUG: world 'world-1' is destroyed",
        "client.connection DEBUG: the connection to HERE was closed",
    ):
        assert told.count(line) == 1, told
    assert len(told) < 30
    for secret in (TOKEN, "v-secret"):
        assert secret not in caplog.text


def test_a_connection_that_is_lost_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dm_env_rpc_client.client")
    with ScriptedServer(lambda requests, _: iter(())) as server:
        connection = connect(server.address)
        for _ in range(2):
            with pytest.raises(dm_env_rpc_client.ConnectionLostError):
                create_world(connection)
        connection.close()
    (line,) = (line for line in lines(caplog, logging.INFO) if line.startswith("client."))
    assert line.startswith(
        "client.connection INFO: the connection to HERE is unusable: ConnectionLostError: "
    )


def test_a_program_that_does_not_ask_for_the_log_gets_none() -> None:
    program = (
        "import logging, dm_env_rpc_client\n"
        "logging.getLogger('dm_env_rpc_client.client').warning('told')\n"
        "logging.basicConfig()\n"
        "logging.getLogger('dm_env_rpc_client.client').warning('asked for')\n"
    )
    assert run_python("-c", program).stderr == "WARNING:dm_env_rpc_client.client:asked for\n"


@pytest.mark.parametrize(
    ("level", "said"),
    [
        (None, []),
        ("debug", ["debug: connected to HERE", "debug: the connection to HERE was closed"]),
        ("loud", ["warning: DM_ENV_RPC_LOG is one of debug, info, warning, error; got 'loud'"]),
    ],
)
def test_a_variable_has_commands_print_the_log(level: str | None, said: list[str]) -> None:
    with serve(Catch) as server:
        finished = command("inspect", server.address, environment={"DM_ENV_RPC_LOG": level})
        assert finished.returncode == 0, finished.stderr
    assert finished.stderr.replace(server.address, "HERE").splitlines() == said
