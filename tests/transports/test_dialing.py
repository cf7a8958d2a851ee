"""Before HTTP/2: what either end says when a server dials in, right, wrong and not at all."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dm_env_rpc_client import ConnectionLostError, Incoming, ProtocolError, listen
from dm_env_rpc_client.server import Server, serve
from dm_env_rpc_client.transports.http2.dial_in import dialer
from dm_env_rpc_client.transports.http2.dial_in import incoming as incoming_module
from tests.support.environments import Echo
from tests.support.scripted import settles

PATIENCE = 30.0
HELLO = b'{"dm_env_rpc_dial": 1, "environments": 1}\n'


@pytest.fixture
def incoming() -> Iterator[Incoming]:
    with listen("127.0.0.1:0") as found:
        yield found


def dial(incoming: Incoming, *parts: bytes) -> socket.socket:
    host, port = incoming.address.rsplit(":", 1)
    connected = socket.create_connection((host, int(port)), timeout=PATIENCE)
    for part in parts:
        connected.sendall(part)
    return connected


def rest(connected: socket.socket) -> bytes:
    """All that is received until the other end closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connected.recv(65536):
            received += part
    return received


def works(incoming: Incoming) -> bool:
    with serve(Echo, dial=incoming.address), incoming.make(timeout=PATIENCE) as env:
        return bool(env.reset().first() and env.step({"value": 3}).observation["value"] == 3)


NO_OBJECTS = [b"\n", b"GET / HTTP/1.1\r\n", b"[1]\n", b"\xff\xfe{}\n", b"[" * 4000 + b"\n"]


@pytest.mark.parametrize(
    ("said", "because"),
    [
        *((each, "expected a line with an object of JSON") for each in NO_OBJECTS),
        (b"{}\n", "expected dm_env_rpc_dial 1"),
        (b'{"dm_env_rpc_dial": 2, "environments": 1}\n', "expected dm_env_rpc_dial 1"),
        (b'{"dm_env_rpc_dial": true, "environments": 1}\n', "expected dm_env_rpc_dial 1"),
        (b'{"dm_env_rpc_dial": 1}\n', "a number of environments"),
        (b'{"dm_env_rpc_dial": 1, "environments": 0}\n', "a number of environments"),
        (b'{"dm_env_rpc_dial": 1, "environments": "8"}\n', "a number of environments"),
        (HELLO + b"PRI * HTTP/2.0", "more than that"),
        (b" " * 5000, "at most 4096 bytes"),
    ],
)
def test_a_program_refuses(incoming: Incoming, said: bytes, because: str) -> None:
    with dial(incoming, said) as connected:
        answer = rest(connected)
    if len(said) < 4096:  # Of a longer one some was not read, so that the answer may be lost.
        assert json.loads(answer)["code"] == "INVALID_ARGUMENT"
        assert because in json.loads(answer)["text"]
    assert settles(lambda: incoming.refused == 1)
    assert incoming.waiting == 0
    assert works(incoming)


def test_a_server_that_says_it_byte_by_byte_is_welcome(incoming: Incoming) -> None:
    parts = [HELLO[index : index + 1] for index in range(len(HELLO))]
    with dial(incoming, *parts) as connected:
        assert json.loads(connected.makefile("rb").readline()) == {"code": "OK"}
        assert incoming.wait_for(1, PATIENCE)


def test_a_server_that_says_nothing_is_dropped_in_time(
    incoming: Incoming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming_module, "_GREET_SECONDS", 0.2)
    with dial(incoming) as silent, dial(incoming, HELLO[:20]) as slow:
        assert rest(silent) == rest(slow) == b""
    assert settles(lambda: incoming.refused == 2)


def test_of_many_that_say_nothing_the_oldest_are_dropped(
    incoming: Incoming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming_module, "_MAX_GREETING", 5)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(dial(incoming)) for _ in range(12)]
        assert settles(lambda: incoming.refused == 7)
        assert rest(silent[0]) == b""
        assert works(incoming)


def test_servers_that_are_gone_do_not_wait(incoming: Incoming) -> None:
    for _ in range(3):
        with dial(incoming, HELLO) as connected:
            connected.recv(100)
            assert settles(lambda: incoming.waiting == 1)
        assert settles(lambda: incoming.waiting == 0)
    with dial(incoming, HELLO) as talks:
        talks.recv(100)
        talks.sendall(b"x")  # Nothing is to be said before it is needed.
        assert rest(talks) == b""
    assert works(incoming)


def test_a_server_that_is_gone_when_it_is_needed_is_passed_over(incoming: Incoming) -> None:
    def close_when_needed(connected: socket.socket) -> None:
        with connected, connected.makefile("rb") as lines:
            said = [json.loads(lines.readline()) for _ in range(2)]
        assert said == [{"code": "OK"}, {"environments": 1}]

    thread = threading.Thread(target=close_when_needed, args=(dial(incoming, HELLO),))
    thread.start()
    assert incoming.wait_for(1, PATIENCE)
    assert works(incoming)
    thread.join(PATIENCE)


def test_a_server_that_speaks_no_http2_is_an_error(incoming: Incoming) -> None:
    with dial(incoming, HELLO) as connected:
        assert incoming.wait_for(1, PATIENCE)
        connected.recv(100)

        def answer() -> None:
            connected.recv(20)
            connected.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 1000)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises((ProtocolError, ConnectionLostError)):
            incoming.make(timeout=PATIENCE)
        thread.join(PATIENCE)


class Program:
    """The other end of a server that dials: takes connections, and says what it is told to."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._door = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._door.settimeout(PATIENCE)
        self.address = f"127.0.0.1:{self._door.getsockname()[1]}"

    def accept(self, said: bytes = b"") -> tuple[socket.socket, dict[str, Any]]:
        connected = self._stack.enter_context(self._door.accept()[0])
        connected.settimeout(PATIENCE)
        with connected.makefile("rb") as lines:
            hello = json.loads(lines.readline())
        connected.sendall(said)
        return connected, hello


@pytest.fixture
def program() -> Iterator[Program]:
    with contextlib.ExitStack() as stack:
        yield Program(stack)


@pytest.fixture
def dialing(program: Program, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(dialer, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(dialer, "_LONGEST_PAUSE_SECONDS", 0.01)
    with serve(Echo, dial=program.address, dial_environments=3, token="secret") as server:
        yield server


def test_what_a_server_says(dialing: Server, program: Program) -> None:
    hello = program.accept()[1]
    assert hello == {"dm_env_rpc_dial": 1, "environments": 3, "token": "secret"}


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n",
        b"\n",
        b" " * 5000,
        b'{"code": "PERMISSION_DENIED"}\n',
        b'{"code": ["OK"]}\n',
        b'{"environments": 1}\n',
        b'{"code": "OK"}\nnothing\n',
        b'{"code": "OK"}\n{"environments": 4}\n',
        b'{"code": "OK"}\n{"environments": 0}\n',
        b'{"code": "OK"}\n{"environments": true}\n',
    ],
)
def test_a_server_dials_again_after_nonsense(
    dialing: Server, program: Program, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = program.accept(said)
    if not said:
        first.close()
    assert program.accept()[1]["environments"] == 3
    assert f"could not dial in to {program.address}: " in caplog.text
    assert dialing.stats().all_streams == 0


def test_a_server_does_not_wait_for_a_welcome_without_end(
    dialing: Server, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first attempt may have begun with the usual patience.
    connected, _ = program.accept()
    monkeypatch.setattr(dialer, "_GREET_SECONDS", 0.1)
    connected.close()
    assert rest(program.accept()[0]) == b""
    program.accept()


def test_a_program_that_is_gone_after_it_said_how_many(dialing: Server, program: Program) -> None:
    for _ in range(3):
        connected, hello = program.accept(b'{"code": "OK"}\n{"environments": 3}\n')
        assert hello["environments"] == 3
        connected.close()
    program.accept(b'{"code": "OK"}\n{"environments": 1}\n')
    assert program.accept(b'{"code": "OK"}\n')[1]["environments"] == 2


def test_stop_does_not_wait_for_the_program(program: Program) -> None:
    with serve(Echo, dial=program.address) as server:
        connected, _ = program.accept(b'{"code": "OK"}\n')
        begun = time.monotonic()
        server.stop(grace=60.0)
        assert time.monotonic() - begun < 10
        assert rest(connected) == b""
