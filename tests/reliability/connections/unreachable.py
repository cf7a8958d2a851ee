"""A program in a network of its own: a server on another machine, which is cut off in a request.

It prints how many seconds later that was noticed, and the error. The machines are two network
namespaces, joined by a cable (veth). The cable is cut by wrong hardware addresses at both ends:
frames are still sent, and nobody takes them, as behind a router that has lost its route.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

from dm_env_rpc_client import ConnectionLostError, make
from dm_env_rpc_client.protocol import pipeline
from dm_env_rpc_client.transports.grpc import channel, probes
from dm_env_rpc_client.transports.http2.client import connection
from dm_env_rpc_client.transports.net import keepalive, sockets

USUAL_SECONDS = 20.0
LATE_SECONDS = 12.0

HERE, THERE = "10.9.0.1", "10.9.0.2"


def scale(limit: float) -> None:
    """Makes the client notice within `limit` seconds instead of 20."""
    keepalive_options: Any = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 2}
    sockets._TCP_KEEPALIVE.update(keepalive_options)
    for module in (keepalive, probes):
        vars(module)["PROBE_SECONDS"] = limit / 2
    vars(connection)["UNREACHABLE_SECONDS"] = limit
    vars(channel)["_ACKNOWLEDGE_MS"] = int(limit / 2 * 1000)


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def main(transport: str, where: str, limit: float) -> None:
    if limit != USUAL_SECONDS:
        scale(limit)
    # Steps, too, so that only what the kernel knows is tried.
    vars(pipeline)["KEEPALIVE_SECONDS"] = 300.0
    other = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep 600"],
                             stdout=subprocess.PIPE)  # fmt: skip
    assert other.stdout is not None
    other.stdout.readline()
    inside = ["nsenter", "-t", str(other.pid), "--net"]
    run("ip", "link", "add", "va", "type", "veth", "peer", "name", "vb", "netns", str(other.pid))
    for command, own, name in (([], HERE, "va"), (inside, THERE, "vb")):
        run(*command, "ip", "link", "set", "lo", "up")
        run(*command, "ip", "addr", "add", f"{own}/24", "dev", name)
        run(*command, "ip", "link", "set", name, "up")
    server = subprocess.Popen(
        [*inside, sys.executable, "-m", "tests.support.holding", "plain", f"{THERE}:0"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout is not None
    cut_at: list[float] = []

    def cut() -> None:
        nobody = ("lladdr", "02:00:00:00:00:99", "nud", "permanent")
        run("ip", "neigh", "replace", THERE, "dev", "va", *nobody)
        run(*inside, "ip", "neigh", "replace", HERE, "dev", "vb", *nobody)
        cut_at.append(time.monotonic())

    try:
        address = server.stdout.readline().strip()
        seconds = {"step" if where == "step" else "reset": 600.0}
        env = make(address, seconds, transport=transport, insecure=True)  # type: ignore[arg-type]
        if where == "step":
            env.reset()
        if where == "idle":
            cut()
        else:
            # Late enough for a probe that the frozen server's kernel has acknowledged.
            delay = LATE_SECONDS if where == "late" else 0.5
            threading.Timer(delay, cut).start()
        try:
            env.step({"paddle": 1}) if where == "step" else env.reset()
        except ConnectionLostError as error:
            print(time.monotonic() - cut_at[0], error, flush=True)
    finally:
        for process in (server, other):
            process.kill()
            process.wait()
    os._exit(0)  # The clean-up of the world would wait for the lost machine.


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
