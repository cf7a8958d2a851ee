"""Metrics and spans: what clients and servers report, read with the exporters of the SDK.

Client and server are two ends of the same requests: what one has counted, the other has, too.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opentelemetry.sdk")
from opentelemetry import propagate
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.trace import SpanKind, StatusCode

import dm_env_rpc_client
from dm_env_rpc_client import connect, create_world, dm_env_rpc_pb2, make
from dm_env_rpc_client.adaptors.opentelemetry import DmEnvRpcInstrumentor
from dm_env_rpc_client.adaptors.opentelemetry.instruments import peer_attributes, server_attributes
from dm_env_rpc_client.client.connection_group import ConnectionGroup
from dm_env_rpc_client.protocol import telemetry
from dm_env_rpc_client.protocol.observed_pipeline import ObservedPipeline
from dm_env_rpc_client.protocol.pipeline import Pipeline
from dm_env_rpc_client.server import Catch, Properties, Server, serve
from dm_env_rpc_client.server.error_log import ErrorLog
from dm_env_rpc_client.server.host import Host
from dm_env_rpc_client.server.observed_session import ObservedSession, open_session
from dm_env_rpc_client.server.options import ServeOptions
from dm_env_rpc_client.server.session import Session
from dm_env_rpc_client.testing import ScriptedServer
from dm_env_rpc_client.transports.server_streams import Peer
from tests.adaptors.collected import Collected, context_of, names
from tests.support.environments import Echo
from tests.support.programs import run_python
from tests.support.stopwatch import patience


@pytest.fixture
def collected() -> Iterator[Collected]:
    collected = Collected()
    yield collected
    DmEnvRpcInstrumentor().uninstrument()
    collected.meters.shutdown()
    collected.tracers.shutdown()


@pytest.fixture(params=["http2", "grpc"])
def server(request: pytest.FixtureRequest, collected: Collected) -> Iterator[Server]:
    collected.instrument()
    with serve(Catch, transport=request.param) as server:
        yield server


def test_both_ends_count_the_same_requests_and_bytes(collected: Collected, server: Server) -> None:
    with make(server.address) as env:
        env.reset()
        env.unroll({"paddle": np.ones(50, np.int32)})
        assert collected.total("client.connections") == 1
        assert collected.total("server.connections") == 1
        assert collected.total("server.worlds") == 1
    server.stop()
    asked = {"create_world": 1, "join_world": 1, "step": 51, "leave_world": 1, "destroy_world": 1}
    for end in ("client", "server"):
        assert collected.by_kind(f"{end}.requests") == asked
        assert collected.by_kind(f"{end}.request.duration") == asked
        assert collected.total(f"{end}.connections") == 0
        assert collected.errors(end) == []
    assert collected.total("client.sent") == collected.total("server.received") > 51 * 10
    assert collected.total("client.received") == collected.total("server.sent") > 51 * 100
    assert collected.total("server.worlds") == 0


def test_durations_are_in_seconds_and_the_server_s_are_within_the_client_s(
    collected: Collected,
) -> None:
    collected.instrument()
    with serve(lambda: Echo(seconds=0.02)) as server, make(server.address) as env:
        env.reset()
        for value in range(5):
            env.step({"value": value})

    def of_steps(end: str) -> Any:
        (point,) = (
            point
            for point in collected.points(f"{end}.request.duration")
            if point.attributes["dm_env_rpc.request"] == "step"
        )
        assert point.attributes["rpc.response.status_code"] == "OK"
        assert point.attributes["rpc.system.name"] == "grpc"
        assert "error.type" not in point.attributes
        return point

    client, server_ = of_steps("client"), of_steps("server")
    assert 5 * 0.02 <= server_.sum <= client.sum < 60
    assert client.attributes["server.address"] == "localhost"
    assert client.attributes["server.port"] == int(server.address.rpartition(":")[2])


def test_the_server_s_spans_are_children_of_the_client_s_connect(
    collected: Collected, server: Server
) -> None:
    with make(server.address) as env:
        env.reset()
        env.step({"paddle": 1})
        dm_env_rpc_client.reset_world(env.connection, str(env.world_name))
    (connected,) = collected.spans(SpanKind.CLIENT, "connect")
    asked = ["create_world", "join_world", "reset_world", "leave_world", "destroy_world"]
    served = collected.spans(SpanKind.SERVER)
    assert names(served) == asked
    assert names(collected.spans(SpanKind.CLIENT)) == ["connect", *asked]
    for span in (*served, *collected.spans(SpanKind.CLIENT)[1:]):
        assert span.parent is not None
        assert span.parent.span_id == context_of(connected).span_id
        assert context_of(span).trace_id == context_of(connected).trace_id
    assert names(collected.spans(SpanKind.INTERNAL)) == ["reset_environment"]


def test_spans_of_a_client_belong_to_the_span_of_its_program(
    collected: Collected, server: Server
) -> None:
    tracer = collected.tracers.get_tracer("program")
    with tracer.start_as_current_span("episode") as episode, make(server.address) as env:
        env.reset()
    parents = {
        span.parent.span_id for span in collected.spans(SpanKind.CLIENT) if span.parent is not None
    }
    assert parents == {episode.get_span_context().span_id}
    (connected,) = collected.spans(SpanKind.CLIENT, "connect")
    assert {span.parent.span_id for span in collected.spans(SpanKind.SERVER) if span.parent} == {
        context_of(connected).span_id
    }


def test_spans_of_an_environment_belong_to_its_request(collected: Collected) -> None:
    tracer = collected.tracers.get_tracer("environment")

    def environment() -> Catch:
        with tracer.start_as_current_span("load the level"):
            return Catch()

    collected.instrument()
    with serve(environment) as server, make(server.address):
        pass
    (loaded,) = collected.spans(SpanKind.INTERNAL, "load the level")
    (created,) = collected.spans(SpanKind.SERVER, "create_world")
    assert loaded.parent is not None
    assert loaded.parent.span_id == context_of(created).span_id


@pytest.mark.parametrize("way", ["argument", "environment"])
def test_steps_have_spans_if_they_are_asked_for(
    collected: Collected, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "environment":
        monkeypatch.setenv("DM_ENV_RPC_STEP_SPANS", "1")
        collected.instrument()
    else:
        collected.instrument(step_spans=True)
    with serve(Catch) as server, make(server.address) as env:
        env.reset()
        for _ in range(3):
            env.step({"paddle": 1})
    for kind in (SpanKind.CLIENT, SpanKind.SERVER):
        assert names(collected.spans(kind, "step")) == ["step"] * 4


def test_errors_are_counted_by_their_status_and_class(collected: Collected, server: Server) -> None:
    with connect(server.address) as connection:
        with pytest.raises(dm_env_rpc_client.DmEnvRpcError):
            create_world(connection, {"rows": -1})
        with pytest.raises(dm_env_rpc_client.DmEnvRpcError):
            connection.send(dm_env_rpc_pb2.StepRequest())
    error = "dm_env_rpc_client.errors.DmEnvRpcError"
    refusal = "dm_env_rpc_client.server.request_errors.RequestError"
    for end, raised in (("client", error), ("server", refusal)):
        assert collected.errors(end) == [
            ("create_world", "INVALID_ARGUMENT", raised),
            ("step", "FAILED_PRECONDITION", raised),
        ]
    (asked,) = collected.spans(SpanKind.CLIENT, "create_world")
    assert asked.status.status_code is StatusCode.ERROR
    # The conventions for gRPC count it as the client's error, not as the server's.
    (served,) = collected.spans(SpanKind.SERVER, "create_world")
    assert served.status.status_code is StatusCode.UNSET


def test_exceptions_of_an_environment_are_errors_of_the_server(collected: Collected) -> None:
    def broken() -> Catch:
        raise ZeroDivisionError("no level")

    collected.instrument()
    with serve(broken) as server, pytest.raises(dm_env_rpc_client.DmEnvRpcError):
        make(server.address)
    assert collected.errors("server") == [("create_world", "INTERNAL", "ZeroDivisionError")]
    (served,) = collected.spans(SpanKind.SERVER, "create_world")
    assert served.status.status_code is StatusCode.ERROR
    assert [event.name for event in served.events] == ["exception"]


def test_late_and_lost_answers_are_errors_of_the_client(collected: Collected) -> None:
    collected.instrument()
    silent = threading.Event()

    def answer_nothing(requests: Any, context: Any) -> Iterator[Any]:
        silent.wait(20)
        yield from ()

    with ScriptedServer(answer_nothing) as server:
        connection = connect(server.address, request_timeout=0.1)
        late = connection.submit(dm_env_rpc_pb2.CreateWorldRequest())
        lost = connection.submit(dm_env_rpc_pb2.CreateWorldRequest())
        with pytest.raises(dm_env_rpc_client.DeadlineExceededError):
            late.result()
        with pytest.raises(dm_env_rpc_client.ConnectionLostError):
            lost.result()
        silent.set()
        connection.close()
    errors = "dm_env_rpc_client.errors"
    assert collected.errors("client") == [
        ("create_world", f"{errors}.ConnectionLostError", f"{errors}.ConnectionLostError"),
        ("create_world", f"{errors}.DeadlineExceededError", f"{errors}.DeadlineExceededError"),
    ]
    assert collected.by_kind("client.request.duration") == {"create_world": 2}
    assert collected.total("client.connections") == 0
    assert {span.status.status_code for span in collected.spans(SpanKind.CLIENT, "_world")} == {
        StatusCode.ERROR
    }


def test_a_server_that_is_not_there_is_an_error_of_connect(collected: Collected) -> None:
    collected.instrument()
    with serve(Catch) as server:
        address = server.address
    with pytest.raises(dm_env_rpc_client.ConnectionLostError):
        connect(address, timeout=0.1)
    lost = "dm_env_rpc_client.errors.ConnectionLostError"
    assert collected.errors("client") == [("connect", lost, lost)]
    (connected,) = collected.spans(SpanKind.CLIENT)
    assert connected.status.status_code is StatusCode.ERROR


@pytest.mark.parametrize(
    ("options", "code"),
    [({"token": "secret"}, "UNAUTHENTICATED"), ({"max_connections": 1}, "RESOURCE_EXHAUSTED")],
)
def test_streams_that_are_refused_are_errors_of_the_server(
    collected: Collected, options: dict[str, Any], code: str
) -> None:
    collected.instrument()
    with (
        serve(Catch, **options) as server,
        connect(server.address, token=options.get("token")) as taken,
    ):
        create_world(taken)
        refused = connect(server.address)
        with pytest.raises(dm_env_rpc_client.ConnectionLostError, match=code):
            create_world(refused)
    assert collected.errors("server") == [("connect", code, "")]


async def test_with_asyncio_it_is_the_same(collected: Collected, server: Server) -> None:
    async with await dm_env_rpc_client.make_async(server.address) as env:
        await env.reset()
        for _ in range(5):
            await env.step({"paddle": 1})
        await env.reset()
    server.stop()
    asked = collected.by_kind("server.requests")
    assert asked["step"] == 7
    assert collected.by_kind("client.requests") == asked
    assert collected.by_kind("client.request.duration") == asked
    assert collected.total("client.connections") == 0
    assert names(collected.spans(SpanKind.INTERNAL)) == ["reset_environment"] * 2
    (connected,) = collected.spans(SpanKind.CLIENT, "connect")
    assert {context_of(span).trace_id for span in collected.spans(SpanKind.SERVER)} == {
        context_of(connected).trace_id
    }


def test_connections_that_share_a_socket_have_the_context_of_their_group(
    collected: Collected,
) -> None:
    collected.instrument()
    tracer = collected.tracers.get_tracer("program")
    with serve(Catch) as server:
        with tracer.start_as_current_span("training") as training:
            group = ConnectionGroup(server.address)
        for _ in range(2):
            with group.open() as connection:
                create_world(connection)
    served = collected.spans(SpanKind.SERVER, "create_world")
    assert [span.parent.span_id for span in served if span.parent] == [
        training.get_span_context().span_id
    ] * 2


def test_a_program_s_own_trace_context_is_left_alone(collected: Collected) -> None:
    collected.instrument()
    own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with (
        serve(Catch) as server,
        connect(server.address, metadata=[("traceparent", own)]) as connection,
    ):
        create_world(connection)
    (served,) = collected.spans(SpanKind.SERVER)
    assert f"{context_of(served).trace_id:032x}" == own.split("-")[1]


def test_a_connection_that_is_garbage_collected_is_no_longer_open(collected: Collected) -> None:
    collected.instrument()
    with serve(Catch) as server:
        connection = connect(server.address)
        create_world(connection)
        assert collected.total("client.connections") == 1
        del connection
        gc.collect()
        assert collected.total("client.connections") == 0
    assert collected.by_kind("client.requests") == {"create_world": 1}


def test_a_forked_child_reports_nothing(collected: Collected) -> None:
    """A thread of the parent may have had a lock of the SDK, which is locked for ever there."""
    collected.instrument(step_spans=True)
    seconds = patience(1.0)  # Longer than it takes to fork.
    with serve(lambda: Echo(seconds=seconds)) as server, make(server.address) as env:
        env.reset()
        pending = env.step_async({"value": 1})
        with collected.exporter._lock, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # There are threads.
            child = os.fork()
        if child == 0:
            try:
                pending.result()
            except dm_env_rpc_client.ConnectionLostError:
                os._exit(7)
            os._exit(1)
        killer = threading.Timer(20, os.kill, (child, signal.SIGKILL))
        killer.start()
        _, status = os.waitpid(child, 0)
        killer.cancel()
        assert os.waitstatus_to_exitcode(status) == 7
        assert pending.result().observation["value"] == 1
    assert collected.by_kind("client.request.duration")["step"] == 2
    assert collected.errors("client") == []


@pytest.mark.parametrize(
    ("named", "address", "attributes"),
    [
        (server_attributes, "localhost:5", {"server.address": "localhost", "server.port": 5}),
        (server_attributes, "[::1]:443", {"server.address": "::1", "server.port": 443}),
        (server_attributes, "dns:///e.x:443", {"server.address": "e.x", "server.port": 443}),
        (
            server_attributes,
            "unix:/tmp/e",
            {"server.address": "/tmp/e", "network.transport": "unix"},
        ),
        (server_attributes, "engine", {"server.address": "engine"}),
        (
            peer_attributes,
            "ipv4:127.0.0.1:4711",
            {"client.address": "127.0.0.1", "client.port": 4711},
        ),
        (peer_attributes, "ipv6:%5B::1%5D:4711", {"client.address": "::1", "client.port": 4711}),
        (peer_attributes, "unix:", {"client.address": "unix:"}),
    ],
)
def test_both_ends_are_named_as_in_the_conventions(
    named: Any, address: str, attributes: object
) -> None:
    assert named(address) == attributes


def test_restarts_are_counted(collected: Collected) -> None:
    telemetry.restarted("localhost:1", dm_env_rpc_client.ConnectionLostError("gone"))
    collected.instrument()
    telemetry.restarted("localhost:1", dm_env_rpc_client.ConnectionLostError("gone"))
    telemetry.restarted("unix:/tmp/engine")
    first, second = collected.points("client.restarts")
    assert (first.value, second.value) == (1, 1)
    assert first.attributes["error.type"] == "dm_env_rpc_client.errors.ConnectionLostError"
    assert second.attributes["server.address"] == "/tmp/engine"


def test_context_that_is_no_metadata_is_left_out(
    collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inject(carrier: dict[str, str]) -> None:
        carrier.update({"X-Trace": "1", "umlaut": "\u00e4"})

    collected.instrument()
    monkeypatch.setattr(propagate, "inject", inject)
    assert telemetry.context() == (("x-trace", "1"),)
    monkeypatch.setattr(propagate, "inject", lambda carrier: 1 / 0)
    assert telemetry.context() == ()


def test_what_exporters_raise_ends_no_step(
    collected: Collected, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(SpanProcessor):
        def on_start(self, *_: Any, **__: Any) -> None:
            raise OSError("the disk is full")

    collected.tracers.add_span_processor(Broken())
    collected.instrument(step_spans=True)
    with serve(Catch) as server, contextlib.closing(connect(server.address)) as connection:
        world = create_world(connection)
        env = dm_env_rpc_client.join_world(connection, world)
        assert env.step({}).first()
        assert env.step({"paddle": 1}).mid()
        assert server.errors == []
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "the disk is full" in caplog.text
    # Where a connection, a request of a client and one of a server begin; not for each of them.
    assert len(warned) == 3


def test_without_it_connections_and_servers_are_the_plain_ones(collected: Collected) -> None:
    def classes() -> tuple[type, type]:
        host = Host(ServeOptions(environment=Catch), ErrorLog(), Properties())
        with serve(Catch) as server, connect(server.address) as connection:
            return type(connection._pipeline._pipeline), type(open_session(host, Peer("a:1")))

    assert classes() == (Pipeline, Session)
    collected.instrument()
    assert classes() == (ObservedPipeline, ObservedSession)
    DmEnvRpcInstrumentor().uninstrument()
    assert classes() == (Pipeline, Session)


def test_a_second_call_is_a_warning(collected: Collected, caplog: pytest.LogCaptureFixture) -> None:
    collected.instrument()
    installed = telemetry.installed()
    collected.instrument(step_spans=True)
    assert telemetry.installed() is installed
    assert "instrumented already" in caplog.text


def test_worker_processes_report_for_themselves(tmp_path: Path) -> None:
    """`opentelemetry-instrument` finds the entry point, in the workers of a server, too."""
    program = tmp_path / "program.py"
    program.write_text(
        "from dm_env_rpc_client import make\n"
        "from dm_env_rpc_client.server import serve\n"
        "if __name__ == '__main__':\n"
        "    with serve('dm_env_rpc_client.server:Catch', processes=2) as server:\n"
        "        for _ in range(2):\n"
        "            with make(server.address, transport='grpc') as env:\n"
        "                env.reset()\n"
    )
    environment = {
        "OTEL_TRACES_EXPORTER": "console",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_BSP_SCHEDULE_DELAY": "20",
    }
    instrument = "from opentelemetry.instrumentation.auto_instrumentation import run; run()"
    finished = run_python("-c", instrument, sys.executable, program, environment=environment)
    spans = list(_objects(finished.stdout))
    connected = {
        span["context"]["span_id"] for span in spans if span["name"] == "dm_env_rpc.connect"
    }
    served = [span for span in spans if span["kind"] == "SpanKind.SERVER"]
    assert len(connected) == 2
    assert [span["name"] for span in served].count("dm_env_rpc.join_world") == 2
    assert {span["parent_id"] for span in served} == connected


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects that the console exporters of several processes have printed."""
    decoder = json.JSONDecoder()
    while (start := text.find("{\n")) >= 0:
        found, end = decoder.raw_decode(text[start:])
        yield found
        text = text[start + end :]
