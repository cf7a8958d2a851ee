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
from tests.support.programs import ROOT, run_python
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


@pytest.mark.row(15)
@pytest.mark.parametrize("end", ["", "both_transports.connection.close()"])
def test_row_15_a_thread_of_grpcio_that_is_stopped_in_a_lock_does_not_hinder_the_exit(
    echo_environment_server: Server, transport: str, end: str
) -> None:
    if transport != "grpc":
        pytest.skip("this transport has no threads of grpcio")
    # The interpreter stops daemon threads wherever they are. Those of grpcio take this lock after
    # the end of the call, too, and the call takes it when it is freed.
    program = textwrap.dedent(
        f"""
        import atexit, sys, threading
        is_ended, is_held = threading.Event(), threading.Event()

        def hold():
            is_ended.wait()
            with condition:
                is_held.set()
                threading.Event().wait()

        @atexit.register  # The first to be registered is the last to be called.
        def stop_in_lock():
            answers.join()  # Its thread ends with the stream, and referred to the call.
            is_ended.set()
            is_held.wait()

        from dm_env_rpc_client import connect
        from tests.support import both_transports
        both_transports.obey()
        # Of another module: the globals of this one live as long as the thread that is stopped.
        both_transports.connection = connect(sys.argv[1])
        stream = both_transports.connection._stream
        answers, condition = stream._pump, stream._call._state.condition
        del stream
        threading.Thread(target=hold, daemon=True).start()
        {end}
        """
    )
    finished = run_python("-c", program, echo_environment_server.address, timeout=20)
    assert finished.stderr == ""
