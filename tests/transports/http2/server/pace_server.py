"""A server of worker processes, one for each processor that it may use. Prints its address."""

from __future__ import annotations

import os
import sys

from dm_env_rpc_client.server import serve
from dm_env_rpc_client.transports.http2.server import leader as lead
from tests.server.hosted import Threaded

# Also in the workers, which import this: on a busy machine, where a step of 1 ms may take 10, its
# stream is not to get a thread for that.
vars(lead)["TICK_SECONDS"] = 1.0

if __name__ == "__main__":
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    with serve(Threaded, processes=int(sys.argv[1])) as server:
        print(server.address, flush=True)
        server.wait()
