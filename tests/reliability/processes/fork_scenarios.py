"""Row 16, in processes of its own; `fork_rounds` is row 32.

    python -m tests.reliability.processes.fork_scenarios NAME ADDRESS ROUNDS

pytest's own process holds servers and grpcio, which do not survive a fork.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import warnings

from dm_env_rpc_client import connect, connect_async, make
from tests.reliability.processes.fork_children import use_everything
from tests.reliability.processes.forking import Child
from tests.support.both_transports import obey
from tests.support.scripted import extension


def leaves(address: str) -> None:
    """The server sees the parent leave although the child lives: it keeps no copy of the socket."""
    env = make(address)
    env.reset()
    watcher = connect(address)
    release, hold = os.pipe()

    def live_on() -> str:
        os.close(hold)
        os.read(release, 1)
        return "lived"

    child = Child(live_on)
    # As a kill would: no LeaveWorld, no GOAWAY, no shutdown of the connection.
    os.close(env._connection.fileno())  # type: ignore[union-attr]
    print("left", flush=True)
    sys.stdin.readline()
    os.close(hold)
    assert child.result() == "lived"
    watcher.close()
    os._exit(0)


def same_loop(address: str) -> None:
    """A coroutine that forks and goes on in the child, on the parent's loop and selector."""

    async def scenario() -> None:
        connection = await connect_async(address, request_timeout=20)
        pending = [await connection.start(extension(number)) for number in range(2)]
        await asyncio.sleep(0)  # The requests are written.
        from_child, to_parent = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                # The loop goes round while the answers arrive; the parent does nothing.
                for _ in range(100):
                    await asyncio.sleep(0)
                    time.sleep(0.01)  # A second in all.
                text = await use_everything(connection, pending, reopens=False)
                os.write(to_parent, text.encode())
            except BaseException as error:
                os.write(to_parent, repr(error).encode())
            finally:
                os._exit(0)
        os.close(to_parent)
        os.waitpid(child, 0)
        said = os.read(from_child, 4000)
        assert said == b"refused", said
        for number, one in enumerate(pending):
            assert await connection.wait(one) == extension(number)
        assert await connection.send(extension(9)) == extension(9)
        await connection.close()

    asyncio.run(scenario())


if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads.
    obey()
    name, target, rounds = sys.argv[1:]
    for _ in range(int(rounds)):
        {"leaves": leaves, "same_loop": same_loop}[name](target)
