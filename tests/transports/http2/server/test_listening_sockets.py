"""Where listeners listen, TLS, the health service, and how a listener says goodbye."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dm_env_rpc_client import SpecError, Tls, make
from dm_env_rpc_client.server import Catch, serve
from dm_env_rpc_client.transports.http2.server.listener import Http2Listener
from dm_env_rpc_client.transports.listeners import open_listener
from dm_env_rpc_client.transports.net.listening import listen
from dm_env_rpc_client.transports.server_streams import ListenerOptions
from dm_env_rpc_client.transports.services import WATCH
from tests.support.certificates import Authority, Issued
from tests.support.scripted import descriptor_count, settles
from tests.transports.frames import END_HEADERS, GOAWAY, HEADERS, frame, reset
from tests.transports.hosts import listener as new_listener
from tests.transports.raw_client import RawClient, request, requests
from tests.transports.test_server_streams import WAIT_SECONDS, Streams, answers_to

ADDRESSES = ["127.0.0.1:0", "[::1]:0", "localhost:0", "0.0.0.0:0", "[::]:0", "unix"]
CLIENTS = {"0.0.0.0": ["127.0.0.1"], "[::]": ["127.0.0.1", "[::1]"],
           "localhost": ["127.0.0.1", "[::1]", "localhost"]}  # fmt: skip


@contextlib.contextmanager
def listening_at(streams: Streams, address: str, max_streams: int = 10) -> Iterator[Http2Listener]:
    made = new_listener(streams.open, address, max_streams=max_streams)
    try:
        yield made
    finally:
        made.stop(0.0)


@pytest.fixture
def listener(streams: Streams) -> Iterator[Http2Listener]:
    with listening_at(streams, "localhost:0", 3) as made:
        yield made


def is_answered(address: str, roots: grpc.ChannelCredentials | None = None) -> bool:
    opened = grpc.secure_channel(address, roots) if roots else grpc.insecure_channel(address)
    with opened as channel:
        return answers_to(channel, b"a") == [b"aa"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a unix socket."""
    return tmp_path / "socket"


@pytest.mark.parametrize("address", ADDRESSES)
def test_all_addresses_of_a_name_are_served(address: str, streams: Streams, path: Path) -> None:
    if address == "unix":
        address = f"unix:{path}"
    with listening_at(streams, address) as listener:
        host, _, port = listener.address.rpartition(":")
        for place in CLIENTS.get(host, [host]):
            assert is_answered(f"{place}:{port}")
            kind = "unix:" if host == "unix" else "ipv"
            assert streams.next().peer.address.startswith(kind)
    assert not path.exists()


@pytest.mark.parametrize("kind", ["a server", "a full server", "a text"])
def test_the_file_of_a_server_that_runs_and_any_other_file_is_left(
    kind: str, streams: Streams, path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as running, socket.socket(socket.AF_UNIX) as waiting:
        if kind == "a text":
            path.write_text("precious")
        else:
            running.bind(str(path))
            running.listen(0)
        if kind == "a full server":
            waiting.connect(str(path))  # Nobody accepts it.
        descriptors = descriptor_count()
        with pytest.raises(OSError, match="cannot listen on unix:"):
            new_listener(streams.open, f"unix:{path}")
        assert path.exists()
        assert descriptor_count() == descriptors


@pytest.mark.parametrize("version", [None, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls(
    version: ssl.TLSVersion | None, authority: Authority, issued: Issued, tls: Tls, streams: Streams
) -> None:
    """Of a Tls, or of a context with its latest version."""
    credentials: ssl.SSLContext | Tls = tls
    if version is not None:
        credentials = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        credentials.load_cert_chain(issued.cert, issued.key)
        credentials.maximum_version = version
    listener = open_listener(ListenerOptions(streams.open, 10), "localhost:0", credentials, "http2")
    try:
        roots = grpc.ssl_channel_credentials(authority.ca.read_bytes())
        assert is_answered(listener.address, roots)
        # Larger than a record, so that TLS has decrypted more than was asked for.
        with grpc.secure_channel(listener.address, roots) as channel:
            messages = [bytes([size % 251]) * size for size in (1, 16_384, 16_385, 300_000)] * 5
            assert answers_to(channel, *messages) == [message * 2 for message in messages]
        # Plaintext, and TLS without HTTP/2, are refused; nobody else notices.
        with RawClient(listener.address) as plain:
            assert plain.read_to_the_end()
        client = ssl.create_default_context(cafile=str(authority.ca))
        client.set_alpn_protocols(["http/1.1"])
        port = int(listener.address.rpartition(":")[2])
        connected = socket.create_connection(("127.0.0.1", port), 10)
        with client.wrap_socket(connected, server_hostname="localhost") as encrypted:
            assert encrypted.recv(100) == b""
        assert is_answered(listener.address, roots)
    finally:
        listener.stop(0.0)


def test_a_context_for_clients_is_refused_at_once(streams: Streams) -> None:
    with pytest.raises(SpecError, match="PROTOCOL_TLS_SERVER"):
        open_listener(
            ListenerOptions(streams.open, 10), "localhost:0", ssl.create_default_context(), "http2"
        )


def test_a_watch_of_health_ends_with_the_listener(listener: Http2Listener) -> None:
    with grpc.insecure_channel(listener.address) as channel:
        watch: Any = channel.unary_stream(WATCH)
        watched = watch(b"", timeout=WAIT_SECONDS)
        assert next(watched) == b"\x08\x01"
        listener.stop(0.0)
        assert watched.code() is grpc.StatusCode.UNAVAILABLE


def test_other_methods_are_unimplemented(listener: Http2Listener) -> None:
    with grpc.insecure_channel(listener.address) as channel:
        for path in ("/dm_env_rpc.v1.Environment/Other", "/x/y", "/"):
            stub: Any = channel.unary_unary(path)
            with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
                stub(b"", timeout=WAIT_SECONDS)
    assert is_answered(listener.address)


def test_goaway_tells_which_streams_go_on(listener: Http2Listener, streams: Streams) -> None:
    with RawClient(listener.address) as client:
        client.send(request(1) + requests(1, b"block"))
        stream = streams.next()
        assert stream.blocked.wait(WAIT_SECONDS)
        stopping = threading.Thread(target=listener.stop, args=(WAIT_SECONDS,))
        stopping.start()
        assert client.read_until(lambda: client.goaway_code() == 0)
        assert struct.unpack(">II", client.found(GOAWAY)[0].payload)[0] == 1
        # A stream that crosses it may be tried elsewhere (REFUSED_STREAM).
        client.send(request(3))
        assert client.read_until(lambda: client.reset_code(3) == 7)
        with pytest.raises(OSError, match="refused"):
            RawClient(listener.address)
        stream.go_on.set()
        client.send(requests(1, b"a", end=True))
        assert client.read_until(lambda: client.status(1) == "0")
        assert client.answers(1) == [b"blockblock", b"aa"]
        assert client.read_to_the_end()
        stopping.join(WAIT_SECONDS)
        assert not stopping.is_alive()


def test_the_places_of_streams_are_free_when_they_end(
    listener: Http2Listener, streams: Streams
) -> None:
    ends = {
        "the client ends it": lambda number: requests(number, b"a", end=True),
        "the client resets it": reset,
        "a status": lambda number: requests(number, b"fail"),
        "a broken rule": lambda number: frame(HEADERS, b"", END_HEADERS, number),
    }
    with RawClient(listener.address) as client:
        number = 1
        for name, end in ends.items():
            for _ in range(6):
                opened = [number, number + 2, number + 4]
                number += 6
                client.send(b"".join(request(one) + requests(one, b"a") for one in opened))
                assert client.read_until(
                    lambda: all(client.answers(one) for one in opened)  # noqa: B023  # at once
                ), name
                client.send(request(number))
                assert client.read_until(lambda: client.status(number) == "8")  # noqa: B023
                number += 2
                client.send(b"".join(map(end, opened)))
                made = [streams.next() for _ in opened]
                assert settles(lambda: all(one.closed.is_set() for one in made))  # noqa: B023
                assert settles(lambda: not listener._streams.room.count)
        assert all(one.close_count == 1 for one in made)


@pytest.mark.parametrize("place", ["127.0.0.1", "::1"])
def test_a_port_that_another_program_has_on_one_of_them_is_taken(place: str) -> None:
    family = socket.AF_INET6 if ":" in place else socket.AF_INET
    with socket.socket(family) as other:
        other.bind((place, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on localhost:{port}"):
            serve(Catch, f"localhost:{port}")


def test_a_port_that_is_taken_in_the_meantime_is_left_for_another() -> None:
    asked: list[str] = []

    def add_port(address: str) -> int:
        asked.append(address)
        if len(asked) == 2:
            raise OSError("taken")
        return int(address.rpartition(":")[2])

    bound = listen(add_port, "localhost:0")
    assert asked[0].startswith("127.0.0.1:")
    assert asked[1].startswith("[::1]:")
    assert bound == f"localhost:{asked[-1].rpartition(':')[2]}"
    assert asked[0] != asked[2]


def test_there_is_an_end_to_trying() -> None:
    def add_port(address: str) -> int:
        raise OSError("taken")

    with pytest.raises(OSError, match="cannot listen on localhost:0: taken"):
        listen(add_port, "localhost:0")


def test_the_address_of_an_abstract_socket_is_the_one_that_was_given() -> None:
    name = f"unix-abstract:listening-{os.getpid()}"
    with serve(Catch, name, transport="grpc") as server, make(server.address) as env:
        assert server.address == name
        assert env.reset().first()
