"""What a server counts, logs and keeps of errors; row 41: all of it is bounded."""

from __future__ import annotations

import dataclasses
import logging
import os
from typing import Literal

import numpy as np
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from google.rpc import error_details_pb2

from dm_env_rpc_client import (
    ConnectionLostError,
    DmEnvRpcError,
    connect,
    create_world,
    dm_env_rpc_pb2,
    join_world,
    make,
)
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.server import Catch, Properties, Server, serve
from dm_env_rpc_client.server.errors import KEPT_ERRORS, ErrorLog
from dm_env_rpc_client.server.host import Host
from dm_env_rpc_client.server.options import ServeOptions
from dm_env_rpc_client.server.session import Session
from dm_env_rpc_client.transports.server_streams import Peer
from tests.reliability.connections.soak import resident_bytes
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support.environments import Broken
from tests.support.scripted import extension, playing, settles


@pytest.mark.row(41)
def test_row_41_errors_and_log_lines_are_bounded(
    caplog: pytest.LogCaptureFixture, seen: Seen
) -> None:
    errors = ErrorLog()
    with caplog.at_level(logging.ERROR):
        for number in range(100_000):
            errors.add(ValueError(number), f"step {number} failed")
    seen(errors=errors.count, kept=len(errors.kept), log_lines=len(caplog.records))
    assert errors.count == 100_000
    assert [error.args[0] for error in errors.kept] == list(range(100_000 - KEPT_ERRORS, 100_000))
    assert 10 <= len(caplog.records) <= 100
    assert caplog.records[0].exc_info is not None


@pytest.mark.row(41)
@pytest.mark.parametrize("rows", [0, 16], ids=["alone", "rows"])
@pytest.mark.parametrize("transport", ["http2", "grpc"])
@counts(1_600, 100_000)
def test_row_41_steps_that_fail_in_the_environment(
    transport: Literal["http2", "grpc"],
    rows: int,
    count: int,
    caplog: pytest.LogCaptureFixture,
    seen: Seen,
) -> None:
    settings = {"at": "step", "num_envs": rows} if rows else {"at": "step"}
    action = {"a": np.ones(rows, np.int32) if rows else 1}
    failed = 0
    with (
        caplog.at_level(logging.ERROR, "dm_env_rpc_client.server"),
        serve(Broken, transport=transport) as server,
        make(server.address, settings) as env,
    ):
        env.reset()
        # An error fails its own request only, or its own row; the first comes from the environment.
        for first in range(0, count, 400):
            for future in [env.step_async(action) for _ in range(400 // (rows or 1))]:
                if rows:
                    found = future.result().observation["row_errors"]
                    texts = list(batches.row_errors(found, rows).values())
                else:
                    error = future.exception()
                    assert isinstance(error, DmEnvRpcError), error
                    texts = [error.message]
                assert all("broken in step" in text for text in texts)
                failed += len(texts)
            if first == 0:
                before = resident_bytes(os.getpid())
        grown = resident_bytes(os.getpid()) - before
        lines = len(caplog.records)
        seen(
            **{"rows_that_fail" if rows else "steps_that_fail": failed},
            errors_that_are_kept=float(len(server.errors)),
            lines_of_log=float(lines),
            memory_mib=grown / (1 << 20),
        )
        assert server.stats().errors == failed == count
        assert server.stats().refusals == 0
        assert len(server.errors) == KEPT_ERRORS
    assert 10 <= lines <= 100 + count / 100
    assert not rows or "row 0 of a batch failed in a step request" in caplog.text
    # All of them would take hundreds.
    assert grown < 32 << 20


def test_what_was_not_logged_is_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    errors = ErrorLog()
    for number in range(50):
        errors.add(ValueError(number), "it failed")
    now = 60.0
    errors.add(ValueError(50), "it failed")
    assert caplog.messages[-1] == "it failed (30 more were not logged)"


@pytest.mark.row(41)
@pytest.mark.parametrize(("option", "expected"), [(None, True), (True, True), (False, False)])
def test_tracebacks_are_sent_to_clients_on_this_machine_unless_told_otherwise(
    option: bool | None, expected: bool
) -> None:
    with playing(Broken, {"at": "step"}, send_tracebacks=option) as env:
        env.reset()
        with pytest.raises(DmEnvRpcError, match="broken in step") as caught:
            env.step({"a": 1})
        assert bool(caught.value.details) is expected
        for detail in caught.value.details:
            debug = error_details_pb2.DebugInfo()
            assert detail.Unpack(debug)
            assert "environments.py" in "".join(debug.stack_entries)


@pytest.mark.row(41)
@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ("ipv4:127.0.0.1:5000", True),
        ("ipv6:%5B::1%5D:5000", True),
        ("unix:", True),
        ("ipv4:192.0.2.7:5000", False),
        ("ipv6:%5B2001:db8::1%5D:5000", False),
    ],
)
def test_other_machines_get_no_traceback(peer: str, expected: bool) -> None:
    def break_(request: StringValue, world: object) -> StringValue:
        raise RuntimeError("broken")

    options = ServeOptions(environment=Broken, extensions={StringValue: break_})
    session = Session(Host(options, ErrorLog(), Properties()), Peer(peer))
    request = dm_env_rpc_pb2.EnvironmentRequest(extension=extension(1))
    assert bool(session.handle(request).error.details) is expected


FIELDS = dm_env_rpc_pb2.EnvironmentRequest.DESCRIPTOR.fields_by_name
LOGGER = "dm_env_rpc_client.server"
LOGGERS = (LOGGER, "dm_env_rpc_client.server.clients")


def test_a_server_counts_what_it_does(catch_server: Server) -> None:
    before = catch_server.stats()
    assert (before.streams, before.all_streams, before.steps, before.refusals) == (0, 0, 0, 0)
    assert before.requests == dict.fromkeys(map(str, FIELDS), 0)
    with make(catch_server.address, {"rows": 20}) as env:
        env.reset()
        for _ in range(9):
            env.step({"paddle": 1})
        during = catch_server.stats()
        assert (during.streams, during.worlds, during.agents, during.steps) == (1, 1, 1, 10)
        assert during.uptime > before.uptime
        with connect(catch_server.address) as connection:
            with pytest.raises(DmEnvRpcError):
                join_world(connection, "nowhere")
            connection.send(dm_env_rpc_pb2.LeaveWorldRequest())
    assert settles(lambda: catch_server.stats().streams == 0)
    after = catch_server.stats()
    assert (after.all_streams, after.worlds, after.agents, after.steps) == (2, 0, 0, 10)
    assert (after.refusals, after.errors) == (1, 0)
    counted = {"create_world": 1, "join_world": 2, "step": 10, "leave_world": 2, "destroy_world": 1}
    assert after.requests == {**before.requests, **counted}
    with pytest.raises(dataclasses.FrozenInstanceError):
        after.steps = 0  # type: ignore[misc]


def test_the_log_tells_of_clients_and_refusals_and_not_of_steps(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO), serve(Catch, token="s3cret") as server:
        with pytest.raises(ConnectionLostError):
            make(server.address)
        with make(server.address, {"rows": 30}, token="s3cret") as env:
            env.reset()
            for _ in range(20):
                env.step({"paddle": 1})
            with pytest.raises(DmEnvRpcError):
                create_world(env.connection, {"colour": 1})
        assert settles(lambda: "disconnected" in caplog.text)
    lines = [record.getMessage() for record in caplog.records if record.name in LOGGERS]
    assert len(lines) == 4, lines
    assert "requires a token" in lines[0]
    assert lines[1].endswith(" connected")
    assert "refused a create_world request of" in lines[2]
    assert "known settings: rows" in lines[2]
    assert lines[3].endswith(" disconnected")
    assert "s3cret" not in caplog.text


def test_clients_that_come_and_go_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), serve(Catch) as server:
        for _ in range(60):
            connect(server.address).close()
        assert settles(lambda: server.stats().streams == 0)
        assert server.stats().all_streams == 60
    assert 1 <= sum(record.name in LOGGERS for record in caplog.records) <= 30
