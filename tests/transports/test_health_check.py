"""Health checks of both listeners, and of gRPC servers that answer otherwise."""

from __future__ import annotations

import concurrent.futures
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from grpc_reflection.v1alpha.reflection_pb2 import (
    ExtensionRequest,
    ServerReflectionRequest,
    ServerReflectionResponse,
)

from dm_env_rpc_client import ConnectionLostError, DeadlineExceededError, ProtocolError
from dm_env_rpc_client.server import Catch, Server, serve
from dm_env_rpc_client.transports import services
from dm_env_rpc_client.transports.endpoint import Endpoint
from dm_env_rpc_client.transports.health_check import check_health
from dm_env_rpc_client.transports.services import CHECK, WATCH
from tests.support.scripted import settles

SERVICE = "dm_env_rpc.v1.Environment"
Request: Any = ServerReflectionRequest


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
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
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
        assert server.stats().all_streams == 0


def assert_serves(address: str) -> None:
    """A server of this package says that it serves, and knows no other service than its own."""
    assert status_of(address) == "SERVING"
    assert status_of(address, SERVICE) == "SERVING"
    assert status_of(address, "other") == "SERVICE_UNKNOWN"


def assert_is_watched(address: str) -> None:
    """A server of this package lets its health be watched until the client has enough."""
    with grpc.insecure_channel(address) as channel:
        watch: Any = channel.unary_stream(WATCH)
        watched, unknown = watch(b"", timeout=20), watch(b"\x0a\x01x", timeout=20)
        assert (next(watched), next(unknown)) == (b"\x08\x01", b"\x08\x03")
        # The client has ended its half, and the stream stays.
        assert status_of(address) == "SERVING"
        assert watched.is_active()
        watched.cancel()
        unknown.cancel()


def test_servers_of_this_package_are_serving(server: Server) -> None:
    assert_serves(server.address)


def test_health_is_watched_until_the_client_has_enough(server: Server) -> None:
    before = threading.active_count()
    assert_is_watched(server.address)
    assert settles(lambda: threading.active_count() <= before)


STATUSES = {b"\x08\x01": "SERVING", b"\x08\x02": "NOT_SERVING", b"\x08\x00": "UNKNOWN"}


@pytest.mark.parametrize(("answer", "status"), [*STATUSES.items(), (b"", "UNKNOWN")])
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
    expected = pytest.raises(ProtocolError, match="0809; expected a HealthCheckResponse")
    with answering(lambda *_: b"\x08\x09") as address, expected:
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


def reflected(channel: grpc.Channel, version: str, *requests: Any) -> list[Any]:
    """What a server's reflection answers; the messages of its versions are the same."""
    ask: Any = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        lambda each: each if isinstance(each, bytes) else each.SerializeToString(),
        ServerReflectionResponse.FromString,
    )
    return list(ask(iter(requests), timeout=20))


def test_a_tool_without_proto_files_lists_describes_and_calls(server: Server) -> None:
    with grpc.insecure_channel(server.address) as channel:
        tool: Any = ProtoReflectionDescriptorDatabase(channel)
        pool = descriptor_pool.DescriptorPool(tool)
        services = tool.get_services()
        assert services == [
            SERVICE,
            "grpc.health.v1.Health",
            *(f"grpc.reflection.{each}.ServerReflection" for each in ("v1", "v1alpha")),
        ]
        found = {each: pool.FindServiceByName(each) for each in services}
        asked = [Request(list_services=""), *(Request(file_containing_symbol=s) for s in services)]
        assert reflected(channel, "v1", *asked) == reflected(channel, "v1alpha", *asked)
        answers = {}
        for name in ("Check", "List"):
            asks, answer = classes(found["grpc.health.v1.Health"].methods_by_name[name])
            call: Any = channel.unary_unary(
                f"/grpc.health.v1.Health/{name}", asks.SerializeToString, answer.FromString
            )
            answers[name] = json_format.MessageToDict(call(asks(), timeout=20))
        serving = {"status": "SERVING"}
        assert answers == {"Check": serving, "List": {"statuses": {"": serving, SERVICE: serving}}}
        asks, _ = classes(found[SERVICE].methods_by_name["Process"])
        create = json_format.Parse('{"createWorld": {}}', asks(), descriptor_pool=pool)
        stream: Any = channel.stream_stream(f"/{SERVICE}/Process", asks.SerializeToString)
        with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
            list(stream(iter([create]), timeout=20))


def classes(method: Any) -> list[Any]:
    """The messages that a method takes and returns."""
    return [
        message_factory.GetMessageClass(each) for each in (method.input_type, method.output_type)
    ]


@pytest.mark.parametrize("transport", ["http2", "grpc"])
def test_without_its_package_there_is_no_reflection(
    transport: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("grpc_reflection", "grpc_reflection.v1alpha"):
        monkeypatch.setitem(sys.modules, name, None)
    services._servicer.cache_clear()
    try:
        with (
            serve(Catch, transport=transport) as server,
            grpc.insecure_channel(server.address) as channel,
        ):
            with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
                reflected(channel, "v1", Request(list_services=""))
            assert status_of(server.address) == "SERVING"
    finally:
        services._servicer.cache_clear()


def test_reflection_refuses_and_is_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "_MAX_REQUESTS", 8)
    with grpc.insecure_channel(server.address) as channel:
        unknown = [
            Request(file_containing_symbol="no.Such"),
            Request(file_by_filename="no.proto"),
            Request(all_extension_numbers_of_type="x"),
            Request(file_containing_extension=ExtensionRequest()),
            Request(),
        ]
        for request, answer in zip(unknown, reflected(channel, "v1", *unknown), strict=True):
            assert answer.HasField("error_response")
            assert answer.original_request == request
        file = Request(file_by_filename="dm_env_rpc/v1/dm_env_rpc.proto")
        (named,) = reflected(channel, "v1", file)
        assert named.HasField("file_descriptor_response")
        for requests, code in (([b"\xff"], "INVALID_ARGUMENT"), ([b""] * 9, "RESOURCE_EXHAUSTED")):
            with pytest.raises(grpc.RpcError, match=code):
                reflected(channel, "v1", *requests)
        assert status_of(server.address) == "SERVING"
