"""Those who step the environment of the C++ peer, each in its own way.

All of them send the same request, one int32 action and one observation asked for, and get
the same answer. They differ in what is between them and the socket.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import queue
import socket
import struct
import time
import typing
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import grpc
import numpy as np
from dm_env_rpc.v1 import connection as reference_connection
from dm_env_rpc.v1 import dm_env_adaptor as reference_adaptor

from dm_env_rpc_client import dm_env_rpc_pb2, make, pack_tensor
from dm_env_rpc_client.client import connecting
from tests.peers import cpp_peers

REFERENCE = "dm-env-rpc 1.1.7"
BARE_GRPCIO = "grpcio, bare bytes"
BARE_CPP = "bare C++ gRPC"
PLAIN_TCP = "plain TCP"
TRANSPORTS: tuple[str, ...] = tuple(
    name for name in typing.get_args(connecting.Transport) if name != "auto"
)
BEST = "http2"
"""The transport that the targets are about."""

_WARM_UP = 2
_PROCESS = "/dm_env_rpc.v1.Environment/Process"


def our_name(transport: str) -> str:
    """What the table calls this package over a transport."""
    return f"dm_env_rpc_client, {transport}"


class Stepper(Protocol):
    """Takes steps, and the time of it."""

    def wait(self, count: int) -> float:
        """Returns the seconds of `count` steps, waiting for each answer."""

    def ahead(self, count: int, depth: int) -> float:
        """Returns the seconds of `count` steps with `depth` of them in flight."""

    def close(self) -> None:
        """Lets go of the environment."""


def _timed(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


class _Adaptor:
    """Steps an adaptor, which is `_env`."""

    _env: Any

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self._env.step({"action": 1})

    def wait(self, count: int) -> float:
        self.step(_WARM_UP)
        return _timed(lambda: self.step(count))


class Reference(_Adaptor):
    """The adaptor of PyPI's dm-env-rpc."""

    def __init__(self, address: str, settings: Mapping[str, Any]):
        self._connection = reference_connection.create_secure_channel_and_connect(address)
        self._env, _ = reference_adaptor.create_and_join_world(self._connection, settings, {})

    def ahead(self, count: int, depth: int) -> float:
        raise NotImplementedError("it has no way to send a step before it has the last answer")

    def close(self) -> None:
        self._env.close()
        # Its own close leaves a thread that waits for more requests.
        self._connection._stream._requests.put(None)
        self._connection.close()


class Ours(_Adaptor):
    """The adaptor of this package."""

    def __init__(self, address: str, settings: Mapping[str, Any], transport: str):
        self._env = make(address, settings, transport=cast("connecting.Transport", transport))

    def ahead(self, count: int, depth: int) -> float:
        self.step(_WARM_UP)
        actions = itertools.repeat({"action": 1}, count)
        return _timed(lambda: collections.deque(self._env.rollout(actions, depth), maxlen=0))

    def close(self) -> None:
        self._env.close()


class _Bare:
    """Writes the same request, and reads an answer.

    `write` and `read` are one each.
    """

    write: Callable[[], object]
    read: Callable[[], Any]

    def wait(self, count: int) -> float:
        return self.ahead(count, 1)

    def ahead(self, count: int, depth: int) -> float:
        for _ in range(_WARM_UP):
            self.write()
            self.read()

        def run() -> None:
            for number in range(count + depth):
                if number >= depth:
                    self.read()
                if number < count:
                    self.write()

        return _timed(run)


class BareGrpcio(_Bare):
    """grpcio's Python stream of bytes, of which nobody makes anything."""

    def __init__(self, address: str, settings: Mapping[str, Any]):
        self._channel = grpc.insecure_channel(
            address,
            [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)],
        )
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call: Any = self._channel.stream_stream(_PROCESS)
        self._answers = call(iter(self._requests.get, None))
        created = self._ask(create_world=dm_env_rpc_pb2.CreateWorldRequest(settings=settings))
        name = created.create_world.world_name
        self._ask(join_world=dm_env_rpc_pb2.JoinWorldRequest(world_name=name))

    def _ask(self, **request: Any) -> dm_env_rpc_pb2.EnvironmentResponse:
        self._requests.put(dm_env_rpc_pb2.EnvironmentRequest(**request).SerializeToString())
        answer = dm_env_rpc_pb2.EnvironmentResponse.FromString(next(self._answers))
        assert not answer.HasField("error"), answer
        return answer

    def write(self) -> None:
        self._requests.put(STEP)

    def read(self) -> Any:
        return next(self._answers)

    def close(self) -> None:
        self._requests.put(None)
        self._channel.close()


class BareCpp:
    """A client in C++ that parses each answer and does nothing else."""

    def __init__(self, address: str, payload: str, size: int):
        self._client = cpp_peers.bare_client(address, payload, size)

    def wait(self, count: int) -> float:
        return self.ahead(count, 1)

    def ahead(self, count: int, depth: int) -> float:
        for number in (_WARM_UP, count):
            self._client.tell(f"{depth} {number}")
            answer = json.loads(self._client.hear())
        return float(answer["seconds"])

    def close(self) -> None:
        self._client.stop()


class PlainTcp(_Bare):
    """As many bytes there and back over a socket, into one buffer, by Python."""

    def __init__(self, address: str, request_size: int, answer_size: int):
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(struct.pack("<QQ", request_size, answer_size))
        self._request = bytes(request_size)
        self._buffer = memoryview(bytearray(answer_size))

    def write(self) -> None:
        self._socket.sendall(self._request)

    def read(self) -> None:
        received = 0
        while received < len(self._buffer):
            received += self._socket.recv_into(self._buffer[received:])

    def close(self) -> None:
        self._socket.close()


STEP = dm_env_rpc_pb2.EnvironmentRequest(
    step=dm_env_rpc_pb2.StepRequest(
        actions={1: pack_tensor(np.int32(1))}, requested_observations=[1]
    )
).SerializeToString()


def steppers(
    stack: contextlib.ExitStack, address: str, tcp_address: str, payload: str, size: int = 0
) -> dict[str, Stepper]:
    """Everybody, each joined to a world of its own.

    Args:
      stack: closes them.
      address: of the C++ peer's server.
      tcp_address: of its TCP server.
      payload: what the world observes.
      size: the bytes of the payload "bytes".
    """
    settings: dict[str, str | int] = {"payload": payload, "bytes": size}
    bare = BareGrpcio(address, {name: pack_tensor(value) for name, value in settings.items()})
    all_of_them: dict[str, Stepper] = {REFERENCE: Reference(address, settings)}
    for transport in TRANSPORTS:
        all_of_them[our_name(transport)] = Ours(address, settings, transport)
    all_of_them[BARE_GRPCIO] = bare
    all_of_them[BARE_CPP] = BareCpp(address, payload, size)
    bare.write()
    all_of_them[PLAIN_TCP] = PlainTcp(tcp_address, len(STEP), len(bare.read()))
    for stepper in all_of_them.values():
        stack.callback(stepper.close)
    return all_of_them
