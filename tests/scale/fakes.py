"""Fake servers: they answer what this package's server once answered, each Step after a given time.

One process answers for a thousand environments and more. Of a Step it reads nine bytes of a frame
header and one of the message, so that it costs a fraction of what the client's side of a step
costs.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import selectors
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection as Pipe
from typing import Any

import hpack
import numpy as np
from google.rpc import code_pb2, status_pb2

from dm_env_rpc_client import connect, dm_env_rpc_pb2, pack_tensor
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
from tests.benchmarks.processes import process
from tests.transports.frames import grpc_message

_REQUESTS = dm_env_rpc_pb2.EnvironmentRequest.DESCRIPTOR.fields_by_name
_GREETING = settings_frame({INITIAL_WINDOW_SIZE: MAX_WINDOW}) + window_update(
    0, MAX_WINDOW - FIRST_WINDOW
)
_RESPONSE = hpack.Encoder().encode(
    [(":status", "200", True), ("content-type", "application/grpc", True)]
)
_TRAILERS = hpack.Encoder().encode([("grpc-status", "0", True)])
_AT_ONCE = 1 << 18
"""Bytes up to which answers are joined before they are sent."""


def _tag(name: str) -> int:
    """Returns the first byte of a request: the tag of its payload."""
    return _REQUESTS[name].number << 3 | 2


_STEP = _tag("step")


def _recorded(payload: str) -> dict[int, bytes]:
    """Returns what this package's server answers in an environment with a payload, by the tag."""
    answers: dict[int, bytes] = {}
    with serve(Cheap) as server, connect(server.address) as connection:

        def ask(name: str, **fields: Any) -> Any:
            request = dm_env_rpc_pb2.EnvironmentRequest(**{name: fields})
            answer: Any = connection.send(getattr(request, name))
            response = dm_env_rpc_pb2.EnvironmentResponse(**{name: answer})
            answers[_tag(name)] = response.SerializeToString()
            return answer

        world = ask("create_world", settings={"payload": pack_tensor(payload)}).world_name
        specs = ask("join_world", world_name=world).specs
        actions = {uid: pack_tensor(np.int32(1)) for uid in specs.actions}
        for _ in range(2):  # The first begins a sequence and has no reward.
            ask("step", requested_observations=sorted(specs.observations), actions=actions)
        ask("reset")
        ask("leave_world")
        ask("destroy_world", world_name=world)
    unknown = status_pb2.Status(code=code_pb2.UNIMPLEMENTED, message="a fake has no extensions")
    refused = dm_env_rpc_pb2.EnvironmentResponse(error=unknown)
    return answers | {_tag("extension"): refused.SerializeToString()}


class _Answering:
    """What all connections of a fake share.

    Attributes:
      messages: the answers, by the tag of the request.
      latency: seconds after which Steps are answered.
    """

    def __init__(self, answers: Mapping[int, bytes]):
        self.messages = {tag: grpc_message(answer) for tag, answer in answers.items()}
        self.latency = 0.0


class _Client(asyncio.Protocol):
    """A connection of a client."""

    _transport: asyncio.Transport

    def __init__(self, answering: _Answering):
        self._answering = answering
        self._rest = b""
        # Streams whose Steps are to be answered, while the client reads more slowly than that.
        self._due: collections.deque[int] = collections.deque()
        self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(_GREETING)

    def data_received(self, data: bytes) -> None:
        contents = self._rest + data
        at = len(PREFACE) if contents.startswith(PREFACE) else 0
        steps: list[int] = []
        while at + FRAME_HEADER.size <= len(contents):
            high, low, kind, flags, stream = FRAME_HEADER.unpack_from(contents, at)
            begin = at + FRAME_HEADER.size
            end = begin + (high << 8 | low)
            if end > len(contents):
                break
            tag = contents[begin + MESSAGE_PREFIX.size : end][:1]
            if kind == DATA and tag and tag[0] == _STEP:
                steps.append(stream)
            else:
                self._answer(kind, flags, stream, contents[begin:end])
            at = end
        self._rest = contents[at:]
        if steps:
            loop = asyncio.get_running_loop()
            loop.call_later(self._answering.latency, self._answer_steps, steps)

    def _answer(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        write = self._transport.write
        if kind == HEADERS:
            write(header_frames(_RESPONSE, stream))
        elif kind in (SETTINGS, PING) and not flags & ACK:
            write(frame(kind, ACK, 0, payload if kind == PING else b""))
        elif kind == DATA:
            if len(payload) > MESSAGE_PREFIX.size:
                answer = self._answering.messages[payload[MESSAGE_PREFIX.size]]
                write(frame(DATA, 0, stream, answer))
            if flags & END_STREAM:
                write(header_frames(_TRAILERS, stream, END_STREAM))

    def _answer_steps(self, streams: list[int]) -> None:
        self._due.extend(streams)
        answer = self._answering.messages[_STEP]
        while self._due and not self._is_paused:
            parts: list[bytes] = []
            for _ in range(min(len(self._due), 1 + _AT_ONCE // len(answer))):
                parts += (frame_header(len(answer), DATA, 0, self._due.popleft()), answer)
            self._transport.write(b"".join(parts))

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._answer_steps([])


def _be_a_fake(told: Pipe, answers: Mapping[int, bytes]) -> None:
    answering = _Answering(answers)
    # That of epoll waits for whole milliseconds.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())

    def hear() -> None:
        with contextlib.suppress(EOFError):
            if (latency := told.recv()) is not None:
                answering.latency = latency
                told.send(None)
                return
        loop.stop()

    listening = loop.create_server(lambda: _Client(answering), "127.0.0.1", 0)
    host, port = loop.run_until_complete(listening).sockets[0].getsockname()
    told.send(f"{host}:{port}")
    loop.add_reader(told.fileno(), hear)
    loop.run_forever()


class Fake:
    """A fake server in a process of its own.

    Attributes:
      address: where it serves.
    """

    def __init__(self, told: Pipe):
        self._told = told
        self.address: str = told.recv()

    def answer_after(self, seconds: float) -> None:
        """Answers Steps so long after they have come, from here on; other requests at once."""
        self._told.send(seconds)
        self._told.recv()


@contextlib.contextmanager
def fake(payload: str) -> Iterator[Fake]:
    """Runs a fake server of environments with a payload, one of `PAYLOADS`."""
    with process(_be_a_fake, _recorded(payload)) as told:
        yield Fake(told)
