"""Environments that a program leaves to the exit of the interpreter, or to Ctrl-C.

The server keeps worlds for ever, so that what ends them is the client.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time

import pytest

from dm_env_rpc_client.environment import world_ends
from dm_env_rpc_client.server import Server, serve
from tests.support.environments import Echo
from tests.support.scripted import served_echo, settles
from tests.support.serving import serving
from tests.support.stopwatch import Stopwatch, patience

TRANSPORTS = ["http2"]  # Two of the programs are over grpcio.


server = serving(Echo, idle_world_seconds=None, scope="function", checks_errors=True)


def is_empty(server: Server) -> bool:
    return (server.world_count, server.agent_count) == (0, 0)


class Program:
    """Python code in a process of its own.

    Args:
      code: the code; `address` is the server's.
      address: the address.
      is_patient: whether it may take long to end worlds, as on a busy machine.
    """

    def __init__(self, code: str, address: str, is_patient: bool = True):
        prelude = """
            import asyncio, logging, os, signal, sys, time
            from dm_env_rpc_client import make, make_async
            from dm_env_rpc_client.environment import world_ends, world_ends
            logging.basicConfig()  # Warnings are printed.
            address = sys.argv[1]
        """
        if is_patient:
            prelude += """
            world_ends.CLEAN_UP_SECONDS = 30.0
            world_ends.EXIT_SECONDS = 30.0
        """
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(code), address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def waits_for_line(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline()

    def end(self) -> str:
        """Returns what it wrote to stderr when it has ended."""
        try:
            return self.process.communicate(timeout=patience(60))[1]
        finally:
            self.process.kill()
            self.process.communicate(timeout=patience(60))


LEFT = {
    "in a function": """
        def main():
            env = make(address)
            env.reset()
            env.step({"value": 1})
        main()
    """,
    "over grpcio": """
        def main():
            forgotten = make(address, transport="grpc")
        main()
        env = make(address, transport="grpc")
        env.reset()
    """,
    "in a circle": """
        env = make(address)
        env.itself = env
    """,
    "with a step under way": """
        env = make(address)
        env.reset()
        pending = env.step_async({"value": 1})
    """,
    "in a thread": """
        import threading
        kept = []
        thread = threading.Thread(target=lambda: kept.append(make(address)))
        thread.start()
        thread.join()
    """,
    "with sys.exit": """
        env = make(address)
        sys.exit(0)
    """,
    "of a connection": """
        from dm_env_rpc_client import connect, dm_env_rpc_pb2
        connection = connect(address)
        connection.submit(dm_env_rpc_pb2.LeaveWorldRequest()).result()
        connection.submit(dm_env_rpc_pb2.LeaveWorldRequest())
    """,
    "beside a server": """
        from dm_env_rpc_client.server import Catch, serve
        server = serve(Catch)
        env, own = make(address), make(server.address)
        own.reset()
    """,
    "many together": """
        from dm_env_rpc_client import BatchedEnvironment
        envs = BatchedEnvironment(address, 16)
        envs.reset()
    """,
    "in a coroutine": """
        async def main():
            env = await make_async(address)
            await env.reset()
        import warnings
        warnings.simplefilter("ignore", ResourceWarning)
        asyncio.run(main())
    """,
    "beyond the event loop": """
        async def main():
            global env
            env = await make_async(address)
            await env.reset()
        asyncio.run(main())
    """,
}


@pytest.mark.row(15)
@pytest.mark.parametrize("how", LEFT)
def test_a_world_does_not_outlive_the_program(server: Server, how: str) -> None:
    program = Program(LEFT[how], server.address)
    stderr = program.end()
    assert settles(lambda: is_empty(server)), stderr
    assert (program.process.returncode, stderr) == (0, "")


class SlowToClose(Echo):
    """So that its client exits while the world is destroyed."""

    def close(self) -> None:
        time.sleep(0.5)  # Longer than a program takes to exit that does not wait for it.


@pytest.mark.parametrize("how", ["in a function", "in a coroutine"])
def test_the_exit_waits_for_a_world_that_is_being_destroyed(how: str) -> None:
    with serve(SlowToClose, idle_world_seconds=None) as server:
        # Until the request to destroy the world is under way.
        wait = "\ntime.sleep(0.2)\n"
        program = Program(textwrap.dedent(LEFT[how]) + wait, server.address)
        assert program.end() == ""
        assert is_empty(server)


CTRL_C = {
    "in a step": """
        env = make(address, {"seconds": SECONDS})
        env.reset()
        print("ready", flush=True)
        env.step({"value": 1})
    """,
    "between steps": """
        env = make(address)
        env.reset()
        print("ready", flush=True)
        time.sleep(60)  # Until Ctrl-C.
    """,
    "over grpcio": """
        env = make(address, {"seconds": SECONDS}, transport="grpc")
        env.reset()
        print("ready", flush=True)
        env.step({"value": 1})
    """,
    "in a with": """
        with make(address, {"seconds": SECONDS}) as env:
            env.reset()
            print("ready", flush=True)
            env.step({"value": 1})
    """,
    "in a coroutine": """
        async def main():
            env = await make_async(address, {"seconds": SECONDS})
            await env.reset()
            print("ready", flush=True)
            await env.step({"value": 1})
        asyncio.run(main())
    """,
}
"""Where it is pressed. A step takes longer than pressing it does."""


@pytest.mark.parametrize("where", CTRL_C)
def test_ctrl_c_ends_the_world(server: Server, where: str) -> None:
    if "grpcio" in where and (3, 12) <= sys.version_info < (3, 12, 2):
        pytest.skip("Python 3.12.0 and 3.12.1 start no thread at the exit, which grpcio takes")
    code = CTRL_C[where].replace("SECONDS", str(patience(1.0)))
    program = Program(code, server.address)
    program.waits_for_line()
    time.sleep(0.1)  # Most are in the step by then. At any other moment the same has to be seen.
    program.process.send_signal(signal.SIGINT)
    stderr = program.end()
    assert settles(lambda: is_empty(server)), stderr
    assert program.process.returncode in (-signal.SIGINT, 130)
    assert stderr.rstrip().endswith("KeyboardInterrupt")


def test_a_frozen_server_delays_the_exit_once_for_all_environments() -> None:
    with served_echo() as server:
        program = Program(
            """
            envs = [make(address) for _ in range(8)]
            print("ready", flush=True)
            sys.stdin.readline()
            """,
            server.address,
            is_patient=False,
        )
        program.waits_for_line()
        server.signal(signal.SIGSTOP)
        begun = Stopwatch()
        program.end()
        assert begun.within(patience(2 * world_ends.EXIT_SECONDS))
        server.signal(signal.SIGCONT)


@pytest.mark.parametrize("kept", [True, False])
def test_ctrl_c_ends_the_waiting_at_the_exit(kept: bool) -> None:
    with served_echo() as server:
        program = Program(
            f"""
            import atexit
            envs = [make(address) for _ in range(8)]
            print("ready", flush=True)
            sys.stdin.readline()
            # Called after those that end environments were registered, so before them.
            atexit.register(lambda: print("exiting", flush=True))
            if not {kept}:
                del envs
            """,
            server.address,
            is_patient=False,
        )
        program.waits_for_line()
        server.signal(signal.SIGSTOP)
        assert program.process.stdin is not None
        program.process.stdin.write("\n")
        program.process.stdin.flush()
        program.waits_for_line()
        time.sleep(0.3)  # It waits by then, usually; nothing tells.
        program.process.send_signal(signal.SIGINT)
        assert program.end() == ""
        server.signal(signal.SIGCONT)
