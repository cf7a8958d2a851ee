"""The stream over a socket: reaching servers, waiting, sending while answers back up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import pytest

from dm_env_rpc_client import (
    ConnectionLostError,
    DeadlineExceededError,
    ProtocolError,
    SpecError,
    connect,
    connect_async,
    dm_env_rpc_pb2,
)
from dm_env_rpc_client.testing import ScriptedServer, echo
from dm_env_rpc_client.transports.endpoint import Endpoint
from dm_env_rpc_client.transports.http2 import sockets
from dm_env_rpc_client.transports.http2.client import keepalive
from dm_env_rpc_client.transports.http2.client.async_stream import open_http2_stream_async
from dm_env_rpc_client.transports.http2.client.target import Target, can_reach
from tests.certificates import openssl
from tests.scripted import descriptor_count, extension, settles, thread_count
from tests.stopwatch import time_limit
from tests.transports import frames
from tests.transports.frames import data, greeting, grpc_message
from tests.transports.hosts import open_http2_stream

Script: TypeAlias = Callable[[socket.socket], None]


@contextlib.contextmanager
def raw_server(script: Script, family: int = socket.AF_INET) -> Iterator[str]:
    """A server that does with each connection what the script says; yields its address."""
    listener = socket.socket(family)
    listener.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
    listener.listen()
    threads: list[threading.Thread] = []
    errors: list[BaseException] = []

    def run(connection: socket.socket) -> None:
        with connection:
            connection.settimeout(30)
            try:
                script(connection)
            except (BrokenPipeError, ConnectionResetError):
                pass
            except BaseException as error:
                errors.append(error)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=run, args=(connection,)))
            threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    host = "[::1]" if family == socket.AF_INET6 else "127.0.0.1"
    try:
        yield f"{host}:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()
        for thread in threads:
            thread.join(30)
    assert errors == []


def read_exactly(connection: socket.socket, count: int) -> bytes:
    contents = b""
    while len(contents) < count:
        part = connection.recv(count - len(contents))
        if not part:
            raise ConnectionResetError
        contents += part
    return contents


def next_frame(connection: socket.socket) -> frames.Frame:
    head = read_exactly(connection, 9)
    (size,) = struct.unpack(">I", b"\0" + head[:3])
    kind, flags, stream = struct.unpack(">BBI", head[3:])
    return frames.Frame(kind, flags, stream, read_exactly(connection, size))


def greet(connection: socket.socket) -> None:
    assert read_exactly(connection, len(frames.PREFACE)) == frames.PREFACE
    connection.sendall(greeting())


def echoed(number: int) -> bytes:
    response = dm_env_rpc_pb2.EnvironmentResponse(extension=extension(number))
    return data(grpc_message(response.SerializeToString()))


def until_closed(connection: socket.socket) -> None:
    while connection.recv(65_536):
        pass


def ask(address: str, is_async: bool, number: int | None = None, **options: Any) -> Any:
    """Connects in either way, and sends an extension if there is a number."""

    async def main() -> Any:
        async with await connect_async(address, **options) as connection:
            return None if number is None else await connection.send(extension(number))

    if is_async:
        return asyncio.run(main())
    with connect(address, **options) as connection:
        return None if number is None else connection.send(extension(number))


# Which addresses, and which credentials.


@pytest.mark.parametrize(
    ("address", "credentials", "expected"),
    [
        ("localhost:1", None, True),
        ("[::1]:1", None, True),
        ("unix:/tmp/socket", None, True),
        ("unix:///tmp/socket", None, True),
        ("unix-abstract:name", None, True),
        ("dns:///localhost:1", None, False),
        ("ipv4:127.0.0.1:1", None, False),
        ("example.com:443", ssl.create_default_context(), True),
        ("localhost:1", grpc.ssl_channel_credentials(), False),
        ("localhost:1", grpc.local_channel_credentials(), True),
    ],
)
def test_auto_takes_http2_where_it_can(address: str, credentials: Any, expected: bool) -> None:
    assert can_reach(address, credentials) is expected


def test_auto_leaves_proxies_to_grpcio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    context = ssl.create_default_context()
    assert can_reach("outside.example:443", context) is False
    assert can_reach("inside.example:443", context) is True
    assert can_reach("localhost:1", None) is True


@pytest.mark.parametrize(
    ("address", "path", "authority"),
    [
        ("localhost:50051", "", "localhost:50051"),
        ("[::1]:50051", "", "[::1]:50051"),
        ("unix:relative/socket", "relative/socket", "localhost"),
        ("unix:///tmp/socket", "/tmp/socket", "localhost"),
        ("unix-abstract:name", "\0name", "localhost"),
    ],
)
def test_addresses_are_what_they_are_to_grpc(address: str, path: str, authority: str) -> None:
    target = Target.parse(address)
    assert (target.path, target.authority) == (path, authority)


def test_what_http2_cannot_reach_is_refused_with_a_way_out() -> None:
    with pytest.raises(SpecError, match="looks like"):
        connect("dns:///localhost:1", transport="http2")
    with pytest.raises(SpecError, match=r"ssl\.SSLContext.*transport='grpc'"):
        connect("localhost:1", credentials=grpc.ssl_channel_credentials(), transport="http2")
    with pytest.raises(SpecError, match=r"grpc\.ssl_channel_credentials"):
        connect("localhost:1", credentials=ssl.create_default_context(), transport="grpc")


# What may listen there.


def http_1(connection: socket.socket) -> None:
    connection.recv(1_000)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def hang_up(connection: socket.socket) -> None:
    connection.recv(65_536)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("script", "error", "text"),
    [
        (http_1, ProtocolError, "not a gRPC server: it speaks HTTP/1"),
        (hang_up, ConnectionLostError, "matching credentials"),
        (until_closed, DeadlineExceededError, "no reply"),
    ],
)
def test_what_is_no_grpc_server_is_named(
    script: Script, error: type[Exception], text: str, is_async: bool
) -> None:
    with (
        raw_server(script) as address,
        time_limit(1.5),
        pytest.raises(error, match=text) as caught,
    ):
        ask(address, is_async, timeout=0.6)
    assert address in str(caught.value)


def test_failed_connects_leave_nothing_behind() -> None:
    with raw_server(hang_up) as address:
        threads, descriptors = thread_count(), descriptor_count()
        for _ in range(20):
            with pytest.raises((ConnectionLostError, DeadlineExceededError)):
                connect(address, timeout=0.02)
            with pytest.raises((ConnectionLostError, DeadlineExceededError)):
                connect("localhost:1", timeout=0.02)
        assert settles(lambda: thread_count() <= threads)
        assert settles(lambda: descriptor_count() <= descriptors)


def test_a_server_that_comes_later_is_found() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    late: list[socket.socket] = []

    def listen() -> None:
        listener = socket.create_server(("127.0.0.1", port))
        connection, _ = listener.accept()
        late.extend((listener, connection))
        greet(connection)

    timer = threading.Timer(0.3, listen)
    timer.start()
    connect(f"127.0.0.1:{port}", timeout=5).close()
    timer.join()
    for each in late:
        each.close()


def test_the_next_address_of_a_name_is_tried(
    echo_server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(echo_server.address.rpartition(":")[2])
    places = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 1)),
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: places)
    with connect("several.localhost:7", timeout=5, transport="http2") as connection:
        assert connection.send(extension(1)) == extension(1)

    async def main() -> None:
        async with await connect_async("several.localhost:7", transport="http2") as connection:
            assert await connection.send(extension(2)) == extension(2)

    asyncio.run(main())


@pytest.mark.parametrize("is_async", [False, True])
def test_an_address_that_does_not_accept_leaves_time_for_the_next(
    echo_server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    port = int(echo_server.address.rpartition(":")[2])

    async def main() -> None:
        connection = await connect_async("two.localhost:7", timeout=2, transport="http2")
        assert await connection.send(extension(1)) == extension(1)
        await connection.close()

    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        silent = listener.getsockname()
        for _ in range(2):  # The kernel drops what does not fit into the queue.
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(silent)
        places = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", silent),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)),
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: places)
        if is_async:
            asyncio.run(main())
        else:
            with connect("two.localhost:7", timeout=2, transport="http2") as connection:
                assert connection.send(extension(1)) == extension(1)


@pytest.mark.parametrize(
    ("remaining", "places", "expected"),
    [
        (6.0, 3, 2.0),
        (3.0, 2, 1.5),
        (60.0, 2, 3.0),
        (None, 2, 3.0),
        (60.0, 1, 60.0),
        (None, 1, None),
    ],
)
def test_addresses_of_a_name_share_the_time(
    remaining: float | None, places: int, expected: float | None
) -> None:
    assert sockets.seconds_to_accept(remaining, places) == expected


def test_a_name_that_is_not_resolved_in_time_is_a_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = threading.Event()

    def slow(*_: Any, **__: Any) -> Any:
        asked.wait(20)
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with time_limit(1.5), pytest.raises(DeadlineExceededError):
        connect("slow.example:7", timeout=0.3, insecure=True, transport="http2")
    asked.set()
    with pytest.raises(ConnectionLostError, match="no such name"):
        connect("unknown.example:7", timeout=0.3, insecure=True, transport="http2")


@pytest.mark.parametrize("is_async", [False, True])
def test_ipv6(is_async: bool) -> None:
    def script(connection: socket.socket) -> None:
        greet(connection)
        connection.sendall(echoed(6))
        until_closed(connection)

    async def main(address: str) -> None:
        stream = await open_http2_stream_async(Endpoint(address), 5)
        assert await stream.read()
        await stream.close(0.1)

    with raw_server(script, socket.AF_INET6) as address:
        if is_async:
            asyncio.run(main(address))
        else:
            stream = open_http2_stream(address)
            assert stream.read(5)
            stream.close(0.1)


# TLS.


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys and certificates of a root of our own, of a server, and of a client."""
    folder = tmp_path_factory.mktemp("authority")

    openssl(folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout",
            "root.key", "-out", "root.crt", "-subj", "/CN=root", "-addext",
            "keyUsage=critical,keyCertSign")  # fmt: skip
    (folder / "names").write_text(
        "subjectAltName=DNS:localhost,IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n"
    )
    for name in ("server", "client"):
        openssl(folder, "req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out",
                f"{name}.csr", "-subj", f"/CN={name}")  # fmt: skip
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "root.crt", "-CAkey",
                "root.key", "-CAcreateserial", "-days", "2", "-out", f"{name}.crt", "-extfile",
                "names")  # fmt: skip
    return folder


@pytest.fixture
def tls_server(authority: Path) -> Iterator[str]:
    """A server that takes clients with a certificate of our root only."""
    credentials = grpc.ssl_server_credentials(
        [((authority / "server.key").read_bytes(), (authority / "server.crt").read_bytes())],
        (authority / "root.crt").read_bytes(),
        require_client_auth=True,
    )
    with ScriptedServer(echo, credentials) as server:
        yield server.address


def context(authority: Path, with_certificate: bool = True) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=authority / "root.crt")
    if with_certificate:
        made.load_cert_chain(authority / "client.crt", authority / "client.key")
    return made


def test_tls_with_roots_and_a_certificate_of_ones_own(tls_server: str, authority: Path) -> None:
    large = extension(1)
    large.value = os.urandom(3_000_000)
    with connect(tls_server, credentials=context(authority)) as connection:
        futures = [connection.submit(extension(number)) for number in range(200)]
        assert [future.result(10) for future in futures] == [extension(n) for n in range(200)]
        assert connection.send(large, timeout=20) == large

    async def main() -> None:
        async with await connect_async(tls_server, credentials=context(authority)) as connection:
            answers = [connection.send(extension(number)) for number in range(200)]
            assert await asyncio.gather(*answers) == [extension(n) for n in range(200)]
            assert await connection.send(large, timeout=20) == large

    asyncio.run(main())


def test_threads_share_a_tls_connection(tls_server: str, authority: Path) -> None:
    wrong: list[int] = []

    def work(thread: int) -> None:
        numbers = range(thread * 500, thread * 500 + 500)
        wrong.extend(n for n in numbers if connection.send(extension(n)) != extension(n))

    with connect(tls_server, credentials=context(authority), request_timeout=30) as connection:
        threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


@pytest.mark.parametrize("is_async", [False, True])
def test_a_certificate_that_nobody_vouches_for_is_said_at_once(
    tls_server: str, is_async: bool
) -> None:
    with (
        time_limit(4),
        pytest.raises(ConnectionLostError, match="certificate verify failed"),
    ):
        ask(tls_server, is_async, credentials=ssl.create_default_context(), timeout=30)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_without_a_certificate_is_refused_at_once(
    tls_server: str, authority: Path, is_async: bool, version: ssl.TLSVersion
) -> None:
    credentials = context(authority, with_certificate=False)
    credentials.maximum_version = version
    with (
        time_limit(10),
        pytest.raises(ConnectionLostError, match=r"certificate|credentials") as caught,
    ):
        ask(tls_server, is_async, credentials=credentials, timeout=30)
    assert tls_server in str(caught.value)


def test_plaintext_to_a_tls_server_names_the_credentials(tls_server: str) -> None:
    with time_limit(3), pytest.raises(ConnectionLostError, match="matching credentials"):
        connect(tls_server, timeout=1)


def test_tls_to_a_plaintext_server_is_an_error(echo_server: ScriptedServer) -> None:
    with time_limit(4), pytest.raises(ConnectionLostError, match="matching credentials"):
        connect(echo_server.address, credentials=ssl.create_default_context(), timeout=1)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_tls_server_without_http2_is_named(authority: Path, is_async: bool) -> None:
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(authority / "server.crt", authority / "server.key")

    def script(connection: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            server_context.wrap_socket(connection, server_side=True) as encrypted,
        ):
            until_closed(encrypted)

    with (
        time_limit(10),
        raw_server(script) as address,
        pytest.raises(ConnectionLostError, match="h2"),
    ):
        ask(address, is_async, credentials=context(authority), timeout=30)


# Sending while answers back up.


MEGABYTE = 1 << 20
REQUEST_BYTES = MEGABYTE + 25
"""A request of a MiB, with what is around it."""


def stubborn(connection: socket.socket) -> None:
    """Answers a MiB with a MiB, and reads no further until the answer is taken."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
    greet(connection)
    open_window = struct.pack(">I", 1 << 30)
    connection.sendall(
        frames.frame(frames.WINDOW_UPDATE, open_window)
        + frames.frame(frames.WINDOW_UPDATE, open_window, 0, 1)
    )
    answer = extension(0)
    answer.value = bytes(MEGABYTE)
    response = dm_env_rpc_pb2.EnvironmentResponse(extension=answer).SerializeToString()
    left = 0
    while True:
        part = next_frame(connection)
        if part.kind == frames.DATA:
            left += len(part.payload)
            while left >= MEGABYTE:
                connection.sendall(data(grpc_message(response)))
                left -= REQUEST_BYTES


def large_request() -> Any:
    request = extension(0)
    request.value = bytes(MEGABYTE)
    return request


def test_who_writes_reads_while_the_server_does_not() -> None:
    with raw_server(stubborn) as address, connect(address, request_timeout=20) as connection:
        pending = [connection.start(large_request()) for _ in range(48)]
        assert {len(connection.wait(each).value) for each in pending} == {MEGABYTE}


def test_many_threads_write_while_the_server_does_not_read() -> None:
    sizes: list[int] = []

    def work() -> None:
        pending = [connection.start(large_request()) for _ in range(12)]
        sizes.extend(len(connection.wait(each).value) for each in pending)

    with raw_server(stubborn) as address, connect(address, request_timeout=20) as connection:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sizes == [MEGABYTE] * 48


def test_futures_and_coroutines_write_while_the_server_does_not_read() -> None:
    with raw_server(stubborn) as address, connect(address, request_timeout=20) as connection:
        futures = [connection.submit(large_request()) for _ in range(48)]
        assert {len(future.result().value) for future in futures} == {MEGABYTE}

    async def main(address: str) -> None:
        async with await connect_async(address, request_timeout=20) as connection:
            answers = await asyncio.gather(*(connection.send(large_request()) for _ in range(48)))
            assert {len(answer.value) for answer in answers} == {MEGABYTE}

    with raw_server(stubborn) as address:
        asyncio.run(main(address))


def test_a_window_that_opens_slowly_is_waited_for() -> None:
    received: list[int] = []

    def script(connection: socket.socket) -> None:
        greet(connection)
        left = 300_000
        while left > 0:
            part = next_frame(connection)
            if part.kind == frames.DATA:
                received.append(len(part.payload))
                left -= len(part.payload)
                step = struct.pack(">I", len(part.payload))
                connection.sendall(
                    frames.frame(frames.WINDOW_UPDATE, step)
                    + frames.frame(frames.WINDOW_UPDATE, step, 0, 1)
                )
        connection.sendall(echoed(3))
        until_closed(connection)

    request = extension(3)
    request.value = bytes(300_000)
    with raw_server(script) as address, connect(address, request_timeout=10) as connection:
        assert connection.send(request) == extension(3)
    assert max(received) <= 16_384


# Silence.


@pytest.fixture
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("keepalive", "connection", "async_stream"):
        monkeypatch.setattr(
            f"dm_env_rpc_client.transports.http2.client.{module}.LOOK_SECONDS", 0.02
        )
    monkeypatch.setattr(keepalive, "KEEPALIVE_SECONDS", 0.1)
    # A busy machine takes a while to answer.
    monkeypatch.setattr(keepalive, "KEEPALIVE_TIMEOUT_SECONDS", 0.5)


def silent(connection: socket.socket) -> None:
    greet(connection)
    until_closed(connection)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.usefixtures("short_silence")
def test_a_server_that_does_not_answer_probes_is_given_up(is_async: bool) -> None:
    with (
        raw_server(silent) as address,
        time_limit(3),
        pytest.raises(ConnectionLostError, match="did not answer a probe"),
    ):
        ask(address, is_async, 1)


def acknowledging(connection: socket.socket, probes: int) -> None:
    """Acknowledges so many probes in the middle of a step."""
    acknowledged = 0
    while acknowledged < probes:
        part = next_frame(connection)
        assert part.kind != frames.PING, "gRPC servers end connections for that"
        if part.kind == frames.SETTINGS and not part.flags and not part.payload:
            connection.sendall(frames.frame(frames.SETTINGS, flags=frames.ACK))
            acknowledged += 1


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.usefixtures("short_silence")
def test_a_server_that_takes_long_is_probed_all_the_time(is_async: bool) -> None:
    def script(connection: socket.socket) -> None:
        greet(connection)
        acknowledging(connection, 5)
        connection.sendall(echoed(5))
        until_closed(connection)

    with raw_server(script) as address:
        assert ask(address, is_async, 5) == extension(5)


@pytest.mark.row(38)
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.usefixtures("short_silence")
def test_row_38_a_server_that_freezes_late_in_a_step_is_noticed(is_async: bool) -> None:
    def script(connection: socket.socket) -> None:
        greet(connection)
        acknowledging(connection, 5)
        until_closed(connection)

    with (
        raw_server(script) as address,
        time_limit(10),
        pytest.raises(ConnectionLostError, match="did not answer a probe"),
    ):
        ask(address, is_async, 5)


# Ends.


def test_aborting_wakes_a_thread_that_reads() -> None:
    with raw_server(silent) as address:
        descriptors = descriptor_count()
        stream = open_http2_stream(address)
        outcome: list[BaseException] = []

        def read() -> None:
            try:
                stream.read(None)
            except BaseException as error:
                outcome.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        time.sleep(0.1)
        stream.abort()
        thread.join(2)
        assert not thread.is_alive()
        assert len(outcome) == 1
        assert stream.fileno() == -1
        stream.write(b"nobody takes this")
        stream.abort()
        assert settles(lambda: descriptor_count() <= descriptors)


def test_answers_are_taken_from_the_loop_only_so_far() -> None:
    """What nobody awaits stays at the server once there is enough of it here."""
    sent: list[int] = []

    def script(connection: socket.socket) -> None:
        greet(connection)
        message = data(grpc_message(bytes(MEGABYTE)))
        for number in range(300):
            connection.sendall(message)
            sent.append(number)
        until_closed(connection)

    async def main(address: str) -> None:
        stream = await open_http2_stream_async(Endpoint(address), 5)
        before = -1
        while len(sent) <= 60 or len(sent) != before:
            before = len(sent)
            await asyncio.sleep(0.3)
        assert 60 < len(sent) < 120
        for _ in range(60):
            assert len(await stream.read()) == MEGABYTE
        await stream.close(0.0)

    with raw_server(script) as address:
        asyncio.run(main(address))
