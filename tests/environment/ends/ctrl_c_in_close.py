"""Ctrl-C at random moments of `close`; run as a process, which prints how many came in time.

Not within pytest: an interrupt inside the locking of a tool that watches the tests, such
as coverage, leaves its lock behind.
"""

from __future__ import annotations

import gc
import random
import sys
import warnings

from dm_env_rpc_client import make
from dm_env_rpc_client.environment import world_ends
from dm_env_rpc_client.server import serve
from tests.support.alarms import Alarm
from tests.support.environments import Echo
from tests.support.scripted import settles


def main(count: int) -> None:
    # Environments that are interrupted before they are closed are forgotten.
    warnings.simplefilter("ignore", ResourceWarning)
    # A machine that stalls for a second uses up the time that `close` has.
    vars(world_ends)["CLEAN_UP_SECONDS"] = 30.0
    chance = random.Random(1)
    interrupted = 0
    with serve(Echo, idle_world_seconds=None) as server:
        for _ in range(count):
            env = make(server.address)
            env.reset()
            try:
                # Between an interrupt that comes at once and one that comes too late.
                with Alarm(chance.uniform(1e-5, 2e-3)):
                    env.close()
            except KeyboardInterrupt:
                interrupted += 1
            del env
            gc.collect()
            assert settles(lambda: (server.world_count, server.agent_count) == (0, 0))
        assert server.errors == []
    print(interrupted)


if __name__ == "__main__":
    main(int(sys.argv[1]))
