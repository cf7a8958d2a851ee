"""Row 54: what is malformed and holds a secret is quoted nowhere.

Recordings and spans of sessions that go well are in the tests of `recording` and `adaptors`.
"""

from __future__ import annotations

import logging
import pickle
import socket
import traceback
from collections.abc import Iterator
from typing import Any

import hpack
import pytest

from dm_env_rpc_client import (
    ProtocolError,
    SpecError,
    connect,
)
from dm_env_rpc_client.server import Catch, serve
from dm_env_rpc_client.transports.endpoint import Transport
from tests.support.scripted import answering_socket
from tests.transports.frames import END_HEADERS, END_STREAM, HEADERS, PREFACE, frame, settings
from tests.transports.raw_client import REQUEST, RawClient

pytestmark = pytest.mark.row(54)

TRANSPORTS = ["http2"]

SECRET = "tok-90d1e7f3ba"
PATIENCE = 30.0


@pytest.fixture(autouse=True)
def logs(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """No log and no output has the secret."""
    caplog.set_level(logging.DEBUG)
    yield
    printed = capfd.readouterr()
    check(caplog.text, printed.out, printed.err, *(vars(record) for record in caplog.records))


def check(*shown: Any) -> None:
    for each in shown:
        texts = [str(each), repr(each)]
        if isinstance(each, BaseException):
            texts += traceback.format_exception(each, limit=-1)
            texts += [str(vars(each)), str(pickle.dumps(each))]
        assert SECRET not in "".join(texts), "the secret is shown"


def _request(*headers: tuple[str, str], more: tuple[tuple[str, str], ...] = ()) -> bytes:
    contents = PREFACE + settings()
    contents += frame(HEADERS, hpack.Encoder().encode(headers), END_HEADERS, 1)
    if more:
        contents += frame(HEADERS, hpack.Encoder().encode(more), END_HEADERS | END_STREAM, 1)
    return contents


def _with(**pseudo: str) -> list[tuple[str, str]]:
    return [(key, pseudo.get(key[1:], value)) for key, value in REQUEST]


REQUESTS = {
    "HTTP/1": f"POST / HTTP/1.1\r\nAuthorization: Bearer {SECRET}\r\n\r\n".encode(),
    "HTTP/1, query": f"GET /?{SECRET} HTTP/1.1\r\n\r\n".encode(),
    "no protocol": f"{SECRET} is the token, the token it is\r\n".encode(),
    "no SETTINGS": PREFACE + frame(HEADERS, SECRET.encode(), 0, 1),
    "a name": _request(*REQUEST, (f"authorization: Bearer {SECRET}", "")),
    "a name of several lines": _request(*REQUEST, (f"x\r\n{SECRET}", "")),
    "a value": _request(*REQUEST, ("authorization", f"Bearer {SECRET}\n")),
    "a value, by its name": _request(*REQUEST, (SECRET, "\n")),
    "a pseudo-header": _request((f":{SECRET}", "x"), *REQUEST),
    "te": _request(*REQUEST, ("te", SECRET)),
    "content-length": _request(*REQUEST, ("content-length", SECRET)),
    "a method": _request(*_with(method=SECRET)),
    "a path": _request(*_with(path=f"/{SECRET}")),
    "a trailer": _request(*REQUEST, more=((f"x {SECRET}", "y"),)),
    "the value of a trailer": _request(*REQUEST, more=(("x", f"{SECRET}\0"),)),
    "base64": _request(*REQUEST, ("x-bin", f"{SECRET}!")),
    "a token": _request(*REQUEST, ("authorization", SECRET)),
    "two tokens": _request(*REQUEST, *[("authorization", f"Bearer {SECRET}")] * 2),
}


@pytest.mark.parametrize(
    "options",
    [{"transport": "http2"}, {"transport": "grpc"}, {"processes": 2}],
    ids=["http2", "grpc", "processes"],
)
def test_row_54_requests(options: dict[str, Any]) -> None:
    with serve(Catch, token="another", **options) as server:
        for name, contents in REQUESTS.items():
            with RawClient(server.address, greets=False) as client:
                client.send(contents)
                client.read_until(lambda: any(part.kind in (1, 3, 7) for part in client.frames))
                replies = []
                decoder = hpack.Decoder()
                for part in client.frames:
                    replies.append(part.payload)
                    if part.kind == HEADERS:
                        replies.append(str(decoder.decode(part.payload, raw=True)).encode())
                # grpcio itself tells a client which of its names was invalid.
                is_ours = options.get("transport") != "grpc"
                assert not is_ours or SECRET.encode() not in b"".join(replies), name
        check(server, server.errors, server.stats())


RESPONSES = {
    "HTTP/1": f"HTTP/1.1 200 OK\r\nSet-Cookie: {SECRET}\r\n\r\n",
    "no protocol": f"{SECRET} is what this server says first\r\n",
}


@pytest.mark.parametrize("name", RESPONSES)
def test_row_54_what_a_server_says_first(name: str) -> None:
    def answer(connected: socket.socket) -> None:
        connected.sendall(RESPONSES[name].encode())
        connected.recv(1 << 16)

    with (
        answering_socket(answer) as address,
        pytest.raises(ProtocolError, match="not a gRPC server") as caught,
    ):
        connect(address, timeout=PATIENCE, transport="http2")
    check(caught.value)


@pytest.mark.parametrize("by", ["http2", "grpc"])
@pytest.mark.parametrize(
    "pair",
    [
        (f"authorization: Bearer {SECRET}", ""),
        (f"key {SECRET}", "value"),
        (f"{SECRET}\n", "value"),
        ("key", f"{SECRET}\n"),
        ("key-bin", SECRET),
        (SECRET.encode(), "value"),
        (SECRET,),
        SECRET,
    ],
    ids=str,
)
def test_row_54_metadata(by: Transport, pair: Any) -> None:
    with pytest.raises(SpecError, match="metadata") as caught:
        connect("localhost:1", metadata=[pair], transport=by)
    check(caught.value)
