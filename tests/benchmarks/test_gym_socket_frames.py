"""84x84x3 uint8 frames over gym-socket-api, against a server that does no work.

`python -m tests.benchmarks.test_gym_socket_frames` prints a table; the ratio is to a plain
TCP ping-pong of the same sizes with the same server in the same run.
"""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe

import numpy as np
import pytest

from dm_env_rpc_client.bridges.gym_socket import GymSocketEnvironment, packets
from dm_env_rpc_client.transports.net.addresses import parse_host_port
from tests.benchmarks.processes import process

SHAPE = (84, 84, 3)
PIXELS = {"type": "Box", "shape": list(SHAPE), "low": [0] * 21168, "high": [255] * 21168}
HANDSHAKE = packets.encode_request(packets.Handshake("frames"))
STEP = packets.encode_request(packets.Step(1))
FRAME = packets.encode_observation(np.arange(21168, dtype=np.uint8).reshape(SHAPE))
STEPPED = packets.encode_step_answer(
    np.arange(21168, dtype=np.uint8).reshape(SHAPE), 1.0, False, {}
)
ROUNDS = 7
SECONDS = 0.5

SPACES = [packets.encode_space(space) for space in ({"type": "Discrete", "n": 2}, PIXELS)]
BY_SIZE = {1: FRAME, len(STEP): STEPPED}


def _answer(listener: socket.socket) -> None:
    """Knows the packets by their length alone, and sends what is encoded already."""
    while True:
        connected, _ = listener.accept()
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        spaces = iter(SPACES)
        while data := connected.recv(64):
            if len(data) == len(HANDSHAKE):
                connected.sendall(packets.encode_error(""))
            else:
                connected.sendall(next(spaces) if len(data) == 2 else BY_SIZE[len(data)])


def _be_a_server(told: Pipe) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_answer, args=(listener,), daemon=True).start()
    told.send(f"localhost:{listener.getsockname()[1]}")
    told.recv()


def per_second(step: Callable[[], object]) -> float:
    for _ in range(50):
        step()
    count = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < SECONDS:
        for _ in range(50):
            step()
        count += 50
    return count / elapsed


def bridge_rate(address: str) -> float:
    with GymSocketEnvironment(address, "frames") as environment:
        assert environment.observation_spec().dtype == np.uint8
        environment.reset()
        assert environment.step(1).observation.shape == SHAPE
        action = np.int64(1)
        return per_second(lambda: environment.step(action))


def ping_pong_rate(address: str) -> float:
    with socket.create_connection(parse_host_port(address), 10) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.sendall(HANDSHAKE)
        plain.recv(4)
        buffer = memoryview(bytearray(len(STEPPED)))

        def step() -> None:
            plain.sendall(STEP)
            filled = 0
            while filled < len(buffer):
                filled += plain.recv_into(buffer[filled:])

        return per_second(step)


def measure() -> list[tuple[float, float]]:
    """Steps per second of the bridge and of the plain ping-pong, round by round."""
    with process(_be_a_server) as told:
        address = told.recv()
        return [(bridge_rate(address), ping_pong_rate(address)) for _ in range(ROUNDS)]


@pytest.mark.slow
def test_frames_per_second() -> None:
    rounds = measure()
    assert max(bridge for bridge, _ in rounds) >= 5000


if __name__ == "__main__":
    results = measure()
    print("84x84x3 uint8 over loopback, steps/s")
    print(f"{'bridge':>10} {'plain TCP':>10} {'ratio':>6}")
    for bridge, plain_tcp in results:
        print(f"{bridge:>10.0f} {plain_tcp:>10.0f} {bridge / plain_tcp:>6.2f}")
    bridges, plains = zip(*results, strict=True)
    ratio = statistics.median(bridge / plain for bridge, plain in results)
    print("median of each:")
    print(f"{statistics.median(bridges):>10.0f} {statistics.median(plains):>10.0f} {ratio:>6.2f}")
