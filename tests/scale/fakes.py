"""Fake servers: they answer bytes that were recorded before, each Step after a given time.

One process answers for a thousand environments and more. For a Step it reads nine bytes of a frame
header and one of the message, and sends what this package's server has once answered, so that it
costs a fraction of what the client's side of a step costs.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import select
import socket
import time
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection as Pipe
from typing import Any, NamedTuple

import hpack
import numpy as np
from google.rpc import code_pb2, status_pb2

from dm_env_rpc_client import dm_env_rpc_pb2, pack_tensor
from dm_env_rpc_client.server import serve
from dm_env_rpc_client.transports.http2.protocol.frames import (
    ACK,
    DATA,
    END_STREAM,
    FIRST_WINDOW,
    FRAME_HEADER,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_WINDOW,
    MESSAGE_PREFIX,
    PING,
    PREFACE,
    SETTINGS,
    frame,
    frame_header,
    header_frames,
    settings_frame,
    window_update,
)
from tests.benchmarks.cheap import Cheap
from tests.scale.processes import Process, answer, process
from tests.transports.frames import grpc_message
from tests.transports.raw_client import RawClient, request, requests

__all__ = ["Fake", "Traffic", "fake"]

Answers = Mapping[int, bytes]
"""The answer to a request, by the first byte of the request: the tag of its payload."""

_GREETING = settings_frame({INITIAL_WINDOW_SIZE: MAX_WINDOW}) + window_update(
    0, MAX_WINDOW - FIRST_WINDOW
)
_RESPONSE = hpack.Encoder().encode(
    [(":status", "200", True), ("content-type", "application/grpc", True)]
)
_TRAILERS = hpack.Encoder().encode([("grpc-status", "0", True)])
_RECEIVED = 1 << 18
_AT_ONCE = 256
_COPIED = 1 << 13
"""Answers up to this are joined before they are sent."""


def _tag(message: bytes) -> int:
    return message[0]


def _recorded(payload: str) -> Answers:
    """Records what this package's server answers, in an environment with a payload."""
    messages = dm_env_rpc_pb2.EnvironmentRequest
    answers: dict[int, bytes] = {}
    with serve(Cheap) as server, RawClient(server.address, window=MAX_WINDOW) as client:
        client.send(window_update(0, MAX_WINDOW - FIRST_WINDOW))
        client.send(request(1))

        def ask(message: dm_env_rpc_pb2.EnvironmentRequest) -> dm_env_rpc_pb2.EnvironmentResponse:
            count = len(client.answers(1)) + 1
            encoded = message.SerializeToString()
            client.send(requests(1, encoded))
            assert client.read_until(lambda: len(client.answers(1)) == count)
            answers[_tag(encoded)] = client.answers(1)[-1]
            return dm_env_rpc_pb2.EnvironmentResponse.FromString(answers[_tag(encoded)])

        created = messages()
        created.create_world.settings["payload"].strings.array.append(payload)
        world = ask(created).create_world.world_name
        joined = messages()
        joined.join_world.world_name = world
        specs = ask(joined).join_world.specs
        stepped = messages()
        stepped.step.requested_observations.extend(sorted(specs.observations))
        for uid in specs.actions:
            stepped.step.actions[uid].CopyFrom(pack_tensor(np.int32(1)))
        for _ in range(2):  # The first begins a sequence and has no reward.
            ask(stepped)
        for field in ("reset", "leave_world"):
            message = messages()
            getattr(message, field).SetInParent()
            ask(message)
        destroyed = messages()
        destroyed.destroy_world.world_name = world
        ask(destroyed)
    extended = messages()
    extended.extension.SetInParent()
    unknown = status_pb2.Status(code=code_pb2.UNIMPLEMENTED, message="a fake has no extensions")
    refused = dm_env_rpc_pb2.EnvironmentResponse(error=unknown)
    answers[_tag(extended.SerializeToString())] = refused.SerializeToString()
    return answers


def _step_tag() -> int:
    message = dm_env_rpc_pb2.EnvironmentRequest()
    message.step.SetInParent()
    return _tag(message.SerializeToString())


class Traffic(NamedTuple):
    """What has passed the sockets of a fake."""

    steps: int
    received: int
    """Bytes, of all requests."""

    sent: int
    """Bytes, of all answers."""


class _Client:
    """A connection of a client."""

    def __init__(self, connected: socket.socket):
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connected
        self.rest = b""
        self.outbound: collections.deque[bytes | memoryview] = collections.deque([_GREETING])
        self.is_greeted = False
        # The answer to a Step by its stream, or what comes before it.
        self.heads: dict[int, bytes] = {}


class _Answering:
    """The loop of a fake's process."""

    def __init__(self, answers: Answers):
        self._answers = answers
        self._step_tag = _step_tag()
        self._step = answers[self._step_tag]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._clients: dict[int, _Client] = {}
        self._seconds = 0.0
        # When the Steps of a client are to be answered, in this order; and their streams.
        self._due: collections.deque[tuple[float, _Client, list[int]]] = collections.deque()
        self._steps = self._received = self._sent = 0

    def run(self, told: Pipe) -> None:
        """Serves until the other end of the pipe is closed."""
        host, port = self._listener.getsockname()
        told.send(f"{host}:{port}")
        while True:
            timeout = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
            blocked = [own for own, client in self._clients.items() if client.outbound]
            watched: list[Any] = [told, self._listener, *self._clients]
            readable, writable, _ = select.select(watched, blocked, [], timeout)
            for one in writable:
                self._flush(self._clients[one])
            for one in readable:
                if one is told:
                    if not self._answer_parent(told):
                        return
                elif one is self._listener:
                    client = _Client(self._listener.accept()[0])
                    self._clients[client.socket.fileno()] = client
                    self._flush(client)
                elif one in self._clients:
                    self._receive(self._clients[one])
            self._answer_due()

    def _answer_parent(self, told: Pipe) -> bool:
        try:
            question = told.recv()
        except EOFError:
            return False
        if question is Traffic:
            told.send(Traffic(self._steps, self._received, self._sent))
        else:
            if isinstance(question, float):
                self._seconds = question
            told.send(answer(question))
        return True

    def _receive(self, client: _Client) -> None:
        try:
            received = client.socket.recv(_RECEIVED)
        except OSError:
            received = b""
        if not received:
            del self._clients[client.socket.fileno()]
            client.socket.close()
            return
        self._received += len(received)
        contents = client.rest + received if client.rest else received
        at = 0
        if not client.is_greeted:
            if len(contents) < len(PREFACE):
                client.rest = contents
                return
            at = len(PREFACE)
            client.is_greeted = True
        steps: list[int] = []
        stop = len(contents) - FRAME_HEADER.size
        while at <= stop:
            high, low, kind, flags, stream = FRAME_HEADER.unpack_from(contents, at)
            size = high << 8 | low
            begin = at + FRAME_HEADER.size
            if begin + size > len(contents):
                break
            at = begin + size
            if kind == DATA and size > 5 and contents[begin + 5] == self._step_tag:
                steps.append(stream)
            else:
                self._answer(client, kind, flags, stream, contents[begin:at])
        client.rest = contents[at:]
        if steps:
            self._due.append((time.monotonic() + self._seconds, client, steps))
        self._flush(client)

    def _answer(self, client: _Client, kind: int, flags: int, stream: int, payload: bytes) -> None:
        out = client.outbound
        if kind == HEADERS:
            out.append(header_frames(_RESPONSE, stream))
        elif kind == SETTINGS and not flags & ACK:
            out.append(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            out.append(frame(PING, ACK, 0, payload))
        elif kind == DATA:
            if len(payload) > MESSAGE_PREFIX.size:
                answer = self._answers[payload[MESSAGE_PREFIX.size]]
                out.append(frame(DATA, 0, stream, grpc_message(answer)))
            if flags & END_STREAM:
                client.heads.pop(stream, None)
                out.append(header_frames(_TRAILERS, stream, END_STREAM))

    def _answer_due(self) -> None:
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            _, client, steps = self._due.popleft()
            self._steps += len(steps)
            if client.socket.fileno() < 0:
                continue
            heads, step = client.heads, self._step
            if len(step) <= _COPIED:
                answers = [heads.get(stream) or self._head(heads, stream) for stream in steps]
                client.outbound.append(b"".join(answers))
            else:
                for stream in steps:
                    client.outbound.append(heads.get(stream) or self._head(heads, stream))
                    client.outbound.append(step)
            self._flush(client)

    def _head(self, heads: dict[int, bytes], stream: int) -> bytes:
        step = self._step
        head = frame_header(len(step) + MESSAGE_PREFIX.size, DATA, 0, stream)
        head += MESSAGE_PREFIX.pack(0, len(step))
        heads[stream] = head = head + step if len(step) <= _COPIED else head
        return head

    def _flush(self, client: _Client) -> None:
        out = client.outbound
        try:
            while out:
                count = client.socket.sendmsg(list(itertools.islice(out, _AT_ONCE)))
                self._sent += count
                _drop(out, count)
        except BlockingIOError:
            pass
        except OSError:
            out.clear()  # The client is gone; receiving says so, too.


def _drop(out: collections.deque[bytes | memoryview], count: int) -> None:
    while count:
        size = len(out[0])
        if count < size:
            out[0] = memoryview(out[0])[count:]
            return
        out.popleft()
        count -= size


def _be_a_fake(told: Pipe, answers: Answers) -> None:
    _Answering(answers).run(told)


class Fake(Process):
    """A fake server in a process of its own."""

    def answer_after(self, seconds: float) -> None:
        """Answers Steps so long after they have come, from here on; other requests at once."""
        self.ask(seconds)

    def traffic(self) -> Traffic:
        """Returns what has passed its sockets."""
        found: Traffic = self.ask(Traffic)
        return found


@contextlib.contextmanager
def fake(payload: str) -> Iterator[Fake]:
    """Runs a fake server of environments with a payload, one of `PAYLOADS`."""
    with process(_be_a_fake, _recorded(payload), kind=Fake) as running:
        yield running
