"""84x84x3 uint8 frames over gym-socket-api, against a server that does no work.

`python -m tests.benchmarks.test_gym_socket_frames` prints a table; the ratio is to a plain
TCP ping-pong of the same sizes with the same server in the same run.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from dm_env_rpc_client.bridges.gym_socket import GymSocketEnvironment, packet_codec, packets
from dm_env_rpc_client.transports.addresses import parse_host_port

SHAPE = (84, 84, 3)
PIXELS = {"type": "Box", "shape": list(SHAPE), "low": [0] * 21168, "high": [255] * 21168}
HANDSHAKE = packet_codec.encode_request(packets.Handshake("frames"))
STEP = packet_codec.encode_request(packets.Step(1))
FRAME = packet_codec.encode_observation(np.arange(21168, dtype=np.uint8).reshape(SHAPE))
STEPPED = packet_codec.encode_step_answer(
    np.arange(21168, dtype=np.uint8).reshape(SHAPE), 1.0, False, {}
)
ROUNDS = 7
SECONDS = 0.5

# Knows the packets by their length alone, and sends what it was given beforehand.
SERVER = """
import socket, sys
handshake, *answers = [sys.stdin.buffer.read(int(size)) for size in sys.argv[1].split(",")]
by_size = {size: answer for size, answer in zip(map(int, sys.argv[2].split(",")), answers)}
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    connected, _ = listener.accept()
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    spaces = iter((answers[0], answers[1]))
    while len(data := connected.recv(64)):
        if len(data) > 10:
            connected.sendall(handshake)
        elif len(data) == 2:
            connected.sendall(next(spaces))
        else:
            connected.sendall(by_size[len(data)])
"""


@contextmanager
def idle_server() -> Iterator[str]:
    """A process that answers without looking, so that the client alone is measured."""
    answers = [
        packet_codec.encode_error(""),
        packet_codec.encode_space({"type": "Discrete", "n": 2}),
        packet_codec.encode_space(PIXELS),
        FRAME,
        STEPPED,
    ]
    sizes = ",".join(str(len(answer)) for answer in answers)
    requests = ",".join(map(str, (2, 2, 1, len(STEP))))
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, sizes, requests],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with process.stdin, process.stdout:
            process.stdin.write(b"".join(answers))
            process.stdin.flush()
            yield f"localhost:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()


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
    with idle_server() as address:
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
