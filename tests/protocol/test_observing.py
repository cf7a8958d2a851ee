"""What the hook is told of requests: client and server are two ends of the same ones."""

from __future__ import annotations

import logging
import os
import signal
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dm_env_rpc_client
from dm_env_rpc_client import (
    ObservedRequest,
    connect,
    create_world,
    dm_env_rpc_pb2,
    make,
    observe_requests,
)
from dm_env_rpc_client.protocol import observing
from dm_env_rpc_client.protocol.observing import ObservedPipeline
from dm_env_rpc_client.protocol.pipeline import Pipeline
from dm_env_rpc_client.server import Catch, Properties, Server, serve
from dm_env_rpc_client.server.errors import ErrorLog
from dm_env_rpc_client.server.host import Host
from dm_env_rpc_client.server.observed_session import ObservedSession, open_session
from dm_env_rpc_client.server.options import ServeOptions
from dm_env_rpc_client.server.session import Session
from dm_env_rpc_client.testing import ScriptedServer
from dm_env_rpc_client.transports.server_streams import Peer
from tests.support.environments import Echo
from tests.support.programs import run_python
from tests.support.stopwatch import patience


class Told(list[ObservedRequest]):
    """All that the hook was called with."""

    def of(self, end: str, kind: str = "") -> list[ObservedRequest]:
        return [each for each in list(self) if each.end == end and kind in ("", each.kind)]

    def kinds(self, end: str) -> Counter[str]:
        return Counter(each.kind for each in self.of(end))

    def failures(self, end: str) -> list[tuple[str, str, type]]:
        return [
            (each.kind, each.code, type(each.error))
            for each in self.of(end)
            if each.error is not None or each.code != "OK"
        ]


@pytest.fixture
def told() -> Iterator[Told]:
    told = Told()
    observe_requests(told.append)
    yield told
    observe_requests(None)


@pytest.fixture(params=["http2", "grpc"])
def server(request: pytest.FixtureRequest, told: Told) -> Iterator[Server]:
    with serve(Catch, transport=request.param) as server:
        yield server


ASKED = {"create_world": 1, "join_world": 1, "step": 51, "leave_world": 1, "destroy_world": 1}


def test_both_ends_are_told_of_the_same_requests_and_bytes(told: Told, server: Server) -> None:
    with make(server.address) as env:
        env.reset()
        env.unroll({"paddle": np.ones(50, np.int32)})
    server.stop()
    for end in ("client", "server"):
        assert told.kinds(end) == ASKED
        assert told.failures(end) == []
    client, answered = told.of("client"), told.of("server")
    for part in ("kind", "request_bytes", "answer_bytes"):
        assert [getattr(each, part) for each in client] == [
            getattr(each, part) for each in answered
        ]
    assert all(each.request_bytes > 0 and each.answer_bytes > 0 for each in client)
    assert {each.address for each in client} == {server.address}
    assert all(each.address.startswith("ipv4:127.0.0.1:") for each in answered)


def test_a_server_s_seconds_are_within_the_client_s(told: Told) -> None:
    with serve(lambda: Echo(seconds=0.02)) as server, make(server.address) as env:
        env.reset()
        for value in range(5):
            env.step({"value": value})
    client, answered = (
        sum(each.seconds for each in told.of(end, "step")) for end in ("client", "server")
    )
    assert 5 * 0.02 <= answered <= client < 60


def test_refusals_and_exceptions_have_their_status_and_their_class(
    told: Told, server: Server
) -> None:
    with connect(server.address) as connection:
        with pytest.raises(dm_env_rpc_client.DmEnvRpcError):
            create_world(connection, {"rows": -1})
        with pytest.raises(dm_env_rpc_client.DmEnvRpcError):
            connection.send(dm_env_rpc_pb2.StepRequest())
    for end in ("client", "server"):
        assert [each[:2] for each in told.failures(end)] == [
            ("create_world", "INVALID_ARGUMENT"),
            ("step", "FAILED_PRECONDITION"),
        ]
    assert {each[2] for each in told.failures("client")} == {dm_env_rpc_client.DmEnvRpcError}


def test_a_server_is_told_what_an_environment_raised(told: Told) -> None:
    def broken() -> Catch:
        raise ZeroDivisionError("no level")

    with serve(broken) as server, pytest.raises(dm_env_rpc_client.DmEnvRpcError):
        make(server.address)
    assert told.failures("server") == [("create_world", "INTERNAL", ZeroDivisionError)]


def test_a_request_that_cannot_be_read_is_unknown(told: Told) -> None:
    host = Host(ServeOptions(environment=Catch), ErrorLog(), Properties())
    session = open_session(host, Peer("ipv4:127.0.0.1:1"))
    with pytest.raises(Exception, match="not an EnvironmentRequest"):
        session.answer(b"\xff")
    session.close()
    (request,) = told
    assert (request.kind, request.code, request.answer_bytes) == ("unknown", "INVALID_ARGUMENT", 0)


def test_late_and_lost_answers_have_no_status(told: Told) -> None:
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
    assert {(each[1], each[2]) for each in told.failures("client")} == {
        ("", dm_env_rpc_client.DeadlineExceededError),
        ("", dm_env_rpc_client.ConnectionLostError),
    }
    assert len(told.of("client")) == 2


def test_a_server_has_the_metadata_of_the_call_and_shows_it_in_no_text(
    told: Told, server: Server
) -> None:
    sent = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    with connect(server.address, metadata=[sent]) as connection:
        create_world(connection)
    (asked,), (answered,) = told.of("client", "create_world"), told.of("server", "create_world")
    assert sent in answered.metadata
    assert asked.metadata == ()
    assert "0af7651916" not in f"{answered} {answered!r}"


def test_a_forked_child_tells_nothing(told: Told) -> None:
    """A thread of the parent may have had a lock of the hook, which is locked for ever there."""
    seconds = patience(1.0)  # Longer than it takes to fork.
    with serve(lambda: Echo(seconds=seconds)) as server, make(server.address) as env:
        env.reset()
        before = len(told.of("client"))
        pending = env.step_async({"value": 1})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # There are threads.
            child = os.fork()
        if child == 0:
            try:
                pending.result()
            except dm_env_rpc_client.ConnectionLostError:
                os._exit(7 if len(told.of("client")) == before else 8)
            os._exit(1)
        killer = threading.Timer(20, os.kill, (child, signal.SIGKILL))
        killer.start()
        _, status = os.waitpid(child, 0)
        killer.cancel()
        assert os.waitstatus_to_exitcode(status) == 7
        assert pending.result().observation["value"] == 1
    assert len(told.of("client", "step")) == 2
    assert told.failures("client") == []


def test_what_a_hook_raises_ends_no_request(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(request: ObservedRequest) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(observing, "_has_failed", False)
    observe_requests(broken)
    try:
        with serve(Catch) as server, make(server.address) as env:
            assert env.reset().first()
            assert env.step({"paddle": 1}).mid()
            assert server.errors == []
    finally:
        observe_requests(None)
    assert "the disk is full" in caplog.text
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 1


def test_without_a_hook_connections_and_servers_are_the_plain_ones() -> None:
    def classes() -> tuple[type, type]:
        host = Host(ServeOptions(environment=Catch), ErrorLog(), Properties())
        with serve(Catch) as server, connect(server.address) as connection:
            return type(connection._pipeline), type(open_session(host, Peer("a:1")))

    assert classes() == (Pipeline, Session)
    observe_requests(lambda request: None)
    assert classes() == (ObservedPipeline, ObservedSession)
    observe_requests(None)
    assert classes() == (Pipeline, Session)


def test_what_cannot_be_called_is_refused(told: Told) -> None:
    wrong: Any = "print"
    with pytest.raises(TypeError, match="got 'print'"):
        observe_requests(wrong)
    assert observing.installed_hook() is not None


ENVIRONMENT = """
import os
from dm_env_rpc_client import observe_requests
from dm_env_rpc_client.server import Catch

def write(request):
    if request.end == "server":
        with open(os.environ["TOLD"], "a") as file:
            file.write(f"{os.getpid()} {request.kind}\\n")

observe_requests(write)
"""
PROGRAM = """
import os
from dm_env_rpc_client import make
from dm_env_rpc_client.server import serve

if __name__ == "__main__":
    with serve("observed:Catch", processes=2) as server:
        for _ in range(2):
            with make(server.address, transport="grpc") as env:
                env.reset()
    print(os.getpid())
"""


def test_the_module_of_the_environment_observes_in_worker_processes(tmp_path: Path) -> None:
    (tmp_path / "observed.py").write_text(ENVIRONMENT)
    (tmp_path / "program.py").write_text(PROGRAM)
    path = {"PYTHONPATH": str(tmp_path), "TOLD": str(tmp_path / "told")}
    finished = run_python(tmp_path / "program.py", environment=path)
    lines = (tmp_path / "told").read_text().split("\n")[:-1]
    assert [line.split()[1] for line in lines].count("join_world") == 2
    assert finished.stdout.strip() not in {line.split()[0] for line in lines}
