"""Row 15: programs that forget to close what they opened exit, and what is forgotten is freed."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import weakref
from typing import Any

import pytest

from dm_env_rpc_client import (
    ConnectionLostError,
    make,
)
from dm_env_rpc_client.server import Server
from tests.support.programs import ROOT
from tests.support.scripted import (
    settles,
)
from tests.support.stopwatch import ends_within


@pytest.mark.parametrize("how", ["used", "poisoned", "stepped"])
def test_what_is_forgotten_is_freed(echo_environment_server: Server, how: str) -> None:
    def use() -> weakref.ref[Any]:
        env = make(echo_environment_server.address)
        connection = env._connection
        assert connection is not None
        if how == "stepped":
            env.reset()
            env.step_async({"value": 1}).result(20)
        if how == "poisoned":
            connection._poison(KeyboardInterrupt())
            with pytest.raises(ConnectionLostError):
                env.reset()
        return weakref.ref(connection)

    forgotten = use()
    assert settles(lambda: gc.collect() >= 0 and forgotten() is None)
    assert settles(lambda: echo_environment_server.agent_count == 0)


@pytest.mark.row(15)
@pytest.mark.parametrize(
    "body",
    [
        "connection = connect(address)",
        "connection = connect(address); connection.send(LEAVE)",
        "connection = connect(address); connection.submit(LEAVE)",
        "env = make(address); env.reset()",
        "env = make(address); env.reset(); env.step_async({'value': 1})",
        "env = make(address); env.reset(); raise SystemExit(0)",
        "server = serve(Echo); env = make(server.address); env.reset()",
    ],
)
def test_row_15_a_process_that_forgets_to_close_exits(
    echo_environment_server: Server, body: str
) -> None:
    program = textwrap.dedent(
        f"""
        import sys
        from dm_env_rpc_client import connect, make
        from dm_env_rpc_client.server import serve
        from tests.support.both_transports import obey
        from tests.support.environments import Echo
        from dm_env_rpc_client import dm_env_rpc_pb2
        obey()
        LEAVE = dm_env_rpc_pb2.LeaveWorldRequest()
        address = sys.argv[1]
        try:
            {body}
        finally:
            print("it only has to exit", flush=True)
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, echo_environment_server.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "it only has to exit\n"
            with ends_within(5, process):
                pass
            _, said = process.communicate()
        finally:
            process.kill()
    assert process.returncode == 0
    assert "Traceback" not in said
    assert settles(lambda: echo_environment_server.agent_count == 0)
