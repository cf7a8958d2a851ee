"""Health checks of both listeners, and of gRPC servers that answer otherwise."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from dm_env_rpc_client import ConnectionLostError, DeadlineExceededError, ProtocolError
from dm_env_rpc_client.server import Catch, Server, serve
from dm_env_rpc_client.transports.endpoint import Endpoint
from dm_env_rpc_client.transports.health import CHECK, WATCH
from dm_env_rpc_client.transports.health_check import check_health
from tests.cli.commands import listening
from tests.scripted import settles

SERVICE = "dm_env_rpc.v1.Environment"


@contextlib.contextmanager
def answering(answer: Callable[[bytes, Any], bytes] | None) -> Iterator[str]:
    """A grpcio server whose health service, if it has one, answers as a function says."""
    service, method = CHECK.strip("/").split("/")
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    if answer is not None:
        handler: Any = grpc.unary_unary_rpc_method_handler(answer)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
    port = server.add_insecure_port("localhost:0")
    server.start()
    try:
        yield f"localhost:{port}"
    finally:
        server.stop(0).wait()


def status_of(address: str, service: str = "", timeout: float = 20.0) -> str:
    answered = check_health(Endpoint(address), service, timeout)
    assert 0 < answered.seconds < timeout
    return answered.status


@pytest.fixture(params=["http2", "grpc"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with serve(Catch, transport=request.param, token="secret") as server:
        yield server
        # A check is no stream of a client, and needs no token.
        assert server.stats().all_streams == server.stats().refused_streams == 0


def test_servers_of_this_package_are_serving(server: Server) -> None:
    assert status_of(server.address) == "SERVING"
    assert status_of(server.address, SERVICE) == "SERVING"
    assert status_of(server.address, "other") == "SERVICE_UNKNOWN"


def test_health_is_watched_over_grpcio_until_the_client_has_enough() -> None:
    with serve(Catch, transport="grpc") as server, grpc.insecure_channel(server.address) as channel:
        before = threading.active_count()
        watch: Any = channel.unary_stream(WATCH)
        watched, unknown = watch(b"", timeout=20), watch(b"\x0a\x01x", timeout=20)
        assert (next(watched), next(unknown)) == (b"\x08\x01", b"\x08\x03")
        assert watched.is_active()
        assert status_of(server.address) == "SERVING"
        watched.cancel()
        unknown.cancel()
        settles(lambda: threading.active_count() <= before)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"\x08\x01", "SERVING"),
        (b"\x08\x02", "NOT_SERVING"),
        (b"\x08\x00", "UNKNOWN"),
        (b"", "UNKNOWN"),
    ],
)
def test_the_status_is_the_server_s(answer: bytes, status: str) -> None:
    asked = []

    def check(message: bytes, _: Any) -> bytes:
        asked.append(message)
        return answer

    with answering(check) as address:
        assert status_of(address, "engine") == status
    assert asked[-1] == b"\x0a\x06engine"


def test_a_server_without_the_service_is_told_from_one_that_is_not_there() -> None:
    with answering(None) as address:
        assert status_of(address) == "UNIMPLEMENTED"
    with pytest.raises(ConnectionLostError, match="refused"):
        status_of(address, timeout=0.2)


def test_an_answer_of_another_form_is_an_error() -> None:
    with (
        answering(lambda *_: b"\x08\x09") as address,
        pytest.raises(ProtocolError, match="0809; expected a HealthCheckResponse"),
    ):
        status_of(address)


def test_no_answer_in_time_is_an_error() -> None:
    answers = iter([b"\x08\x01"])  # The first is the probe of the channel.
    may_end = threading.Event()

    def check(*_: Any) -> bytes:
        for answer in answers:
            return answer
        may_end.wait(20)
        return b""

    with answering(check) as address:
        with pytest.raises(DeadlineExceededError, match="did not answer a health check in time"):
            status_of(address, timeout=0.5)
        may_end.set()


def test_a_peer_that_is_silent_is_an_error() -> None:
    with listening(lambda connection: None) as silent, pytest.raises(DeadlineExceededError):
        status_of(silent, timeout=0.5)
