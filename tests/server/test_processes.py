"""A server whose worlds live in worker processes."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import multiprocessing
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from dm_env_rpc.v1 import connection as reference_connection
from dm_env_rpc.v1 import dm_env_adaptor as reference_adaptor
from dm_env_rpc.v1 import dm_env_rpc_pb2 as reference_pb2
from dm_env_rpc.v1 import tensor_utils

from dm_env_rpc_client import (
    BatchedEnvironment,
    Connection,
    ConnectionLostError,
    DmEnvAdaptor,
    DmEnvRpcError,
    SpecError,
    Tls,
    connect,
    create_and_join_world,
    create_world,
    destroy_world,
    dm_env_rpc_pb2,
    join_world,
    make,
    reset_world,
)
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.server import Properties, Race, Server, serve
from dm_env_rpc_client.server.processes.messages import say
from dm_env_rpc_client.server.processes.workers import Workers
from dm_env_rpc_client.system.message_pipe import MessagePipe
from dm_env_rpc_client.tensors.limits import Limits
from dm_env_rpc_client.transports.services.health import CHECK
from tests.certificates import self_signed
from tests.launch.processes import is_alive
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.scripted import freeze, settles
from tests.server import hosted
from tests.server.hosted import Where
from tests.stopwatch import Stopwatch, time_limit

LOGGER = "dm_env_rpc_client.server"
START_SECONDS = 60.0


def pid_of(env: DmEnvAdaptor) -> int:
    """The process that an environment is in."""
    return int(env.reset().observation["pid"])


def workers_of(server: Server) -> Workers:
    assert isinstance(server._serving, Workers)
    return server._serving


def processes_of(server: Server) -> list[int]:
    """The process ids of the workers."""
    return [worker.pid for worker in workers_of(server)._workers.values()]


def index_of(server: Server, pid: int) -> int:
    """The place of a worker on the board."""
    (index,) = (i for i, worker in workers_of(server)._workers.items() if worker.pid == pid)
    return index


def host_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def have_ended(pids: list[int]) -> bool:
    return not any(is_alive(pid) for pid in pids)


@pytest.fixture(scope="module")
def _server() -> Iterator[Server]:
    with serve({"where": Where, "race": Race, "process": hosted.WithProcess}, processes=2) as one:
        yield one


@pytest.fixture
def server(_server: Server) -> Iterator[Server]:
    """A server that the tests of this file share; nothing is left on it."""
    yield _server
    assert settles(lambda: (_server.world_count, _server.agent_count) == (0, 0))
    assert settles(lambda: _server.stats().streams == 0)


@contextlib.contextmanager
def elsewhere(address: str, environment: str = "where") -> Iterator[tuple[Connection, str]]:
    """A connection, and the name of a world that is in the other process."""
    with connect(address) as mine, connect(address) as other:
        # On connections without worlds the first is made where the connection is.
        first, name = (
            create_world(connection, {"environment": environment}) for connection in (mine, other)
        )
        assert first.split("-")[1] != name.split("-")[1]
        destroy_world(mine, first)
        yield mine, name
        destroy_world(mine, name)


def test_connections_are_spread_over_the_processes(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        envs = [
            stack.enter_context(make(server.address, {"environment": "where"})) for _ in range(6)
        ]
        pids = [pid_of(env) for env in envs]
        assert sorted(pids.count(pid) for pid in set(pids)) == [3, 3]
        assert os.getpid() not in pids
        assert set(pids) == set(processes_of(server))


@pytest.mark.parametrize("kind", [BatchedEnvironment, RemoteVectorEnv])
def test_environments_of_one_client_are_spread_without_forwarding(
    server: Server, kind: Any
) -> None:
    board = workers_of(server)._board
    before = board.total("handed")
    batch = kind(server.address, 8, {"environment": "where"})
    try:
        begun = batch.reset()
        # A space of one array is that array.
        observed = begun.observation["pid"] if kind is BatchedEnvironment else begun[0]
        pids = observed.tolist()
        assert sorted(pids.count(pid) for pid in set(pids)) == [4, 4]
        # A connection to each, on which the streams of four environments are.
        assert board.total("handed") - before == 2
        stats = server.stats()
        assert (stats.streams, stats.worlds, stats.agents) == (8, 8, 8)
        assert own_forwarded(server) == 0
    finally:
        batch.close()


def own_forwarded(server: Server) -> int:
    """Streams that a worker serves for another: sockets of pairs beyond the pipes to the server."""
    return sum(_unix_sockets(pid) - 2 for pid in processes_of(server)) // 2


def _unix_sockets(pid: int) -> int:
    inodes = {line.split()[6] for line in Path("/proc/net/unix").read_text().splitlines()[1:]}
    links = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(link))
    return sum(link.removeprefix("socket:[").rstrip("]") in inodes for link in links)


def test_streams_on_one_connection_of_grpcio_are_spread_by_forwarding(server: Server) -> None:
    with grpc.insecure_channel(server.address) as channel, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(Connection(channel)) for _ in range(8)]
        pids = []
        for connection in connections:
            env, name = create_and_join_world(connection, {"environment": "where"}, {})
            stack.callback(destroy_world, connection, name)
            stack.enter_context(env)
            pids.append(pid_of(env))
            assert env.step({"do": 0}).observation["pid"] == pids[-1]
        assert sorted(pids.count(pid) for pid in set(pids)) == [4, 4]
        assert own_forwarded(server) == 4


def test_a_client_on_the_references_modules_plays(server: Server) -> None:
    # grpcio gives all of its channels in a process one socket.
    created = {"environment": tensor_utils.pack_tensor("where")}
    with contextlib.ExitStack() as stack:
        pids = []
        for _ in range(2):
            channel = stack.enter_context(grpc.insecure_channel(server.address))
            connection = reference_connection.Connection(channel)
            stack.callback(connection.close)
            env, name = reference_adaptor.create_and_join_world(connection, created, {})
            stack.callback(connection.send, reference_pb2.DestroyWorldRequest(world_name=name))
            stack.callback(connection.send, reference_pb2.LeaveWorldRequest())
            pids.append(int(env.reset().observation["pid"]))
            for _ in range(3):
                assert env.step({"do": np.int32(0)}).observation["pid"] == pids[-1]
        assert set(pids) == set(processes_of(server))


def test_a_world_of_another_process_is_used_as_any_other(server: Server) -> None:
    with elsewhere(server.address) as (connection, name):
        for factor in (1, 2):
            with join_world(connection, name) as env:
                pid = pid_of(env) // factor
                for _ in range(3):
                    assert env.step({"do": 0}).observation["pid"] == pid * factor
                assert env.reset({"doubled": 1}).observation["pid"] == 2 * pid
                with pytest.raises(DmEnvRpcError, match="told to"):
                    env.step({"do": hosted.RAISE})
                with pytest.raises(DmEnvRpcError, match="leave it first"):
                    destroy_world(connection, name)
        reset_world(connection, name, {"doubled": 0})
        with join_world(connection, name) as env:
            assert pid_of(env) == pid


def test_what_is_large_is_forwarded_whole(server: Server) -> None:
    with elsewhere(server.address) as (connection, name):
        reset_world(connection, name, {"note": "x" * 3_000_000})
        with join_world(connection, name) as env:
            pid_of(env)


def test_steps_in_flight_are_forwarded_in_order(server: Server) -> None:
    with elsewhere(server.address) as (connection, name), join_world(connection, name) as env:
        pid = pid_of(env)
        futures = [env.step_async({"do": 0}) for _ in range(200)]
        assert {int(future.result().observation["pid"]) for future in futures} == {pid}


def race(envs: list[DmEnvAdaptor]) -> list[list[int]]:
    """Runs a race, each player in a thread; returns where each saw the others at the end."""
    seen: list[list[int]] = [[] for _ in envs]

    def play(index: int) -> None:
        timestep = envs[index].reset()
        while not timestep.last():
            timestep = envs[index].step({"move": 1})
        seen[index] = timestep.observation["positions"].tolist()

    threads = [threading.Thread(target=play, args=(index,)) for index in range(len(envs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return seen


def test_players_on_connections_of_different_processes_share_a_game(server: Server) -> None:
    settings = {"environment": "race", "players": 4, "length": 3}
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(server.address)) for _ in range(4)]
        name = create_world(connections[0], settings)
        stack.callback(destroy_world, connections[0], name)
        envs = [stack.enter_context(join_world(each, name)) for each in connections]
        assert own_forwarded(server) == 2
        assert race(envs) == [[3, 3, 3, 3]] * 4


def test_a_client_that_is_gone_waits_no_longer_in_another_process(server: Server) -> None:
    with elsewhere(server.address, "race") as (connection, name):
        with connect(server.address) as second, join_world(second, name) as env:
            lost = connect(server.address)
            waiting = join_world(lost, name)
            threading.Thread(target=env.reset, daemon=True).start()
            waiting.reset()
            future = waiting.step_async({"move": 1})  # Waits for the other player.
            assert settles(lambda: server.agent_count == 2)
            lost._pipeline._stream.abort()
            assert settles(lambda: server.agent_count == 1)
            with pytest.raises(ConnectionError):
                future.result(10)
            lost.close()
        assert connection.is_usable


def test_an_idle_server_takes_no_processor_time(server: Server) -> None:
    assert server.world_count == 0
    begin = time.process_time()
    time.sleep(0.5)  # The time in which it does nothing is what is measured.
    assert time.process_time() - begin < 0.1


def test_an_environment_may_have_processes_of_its_own(server: Server) -> None:
    with make(server.address, {"environment": "process"}, request_timeout=60) as env:
        assert pid_of(env) != os.getpid()


def test_health_is_answered_by_every_process(server: Server) -> None:
    for _ in range(4):
        with grpc.insecure_channel(server.address) as channel:
            check: Any = channel.unary_unary(CHECK)
            assert check(b"", timeout=10) == b"\x08\x01"


def test_what_is_counted_logged_and_raised_reaches_the_servers_own_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        caplog.at_level(logging.INFO),
        serve(hosted.make, processes=2, idle_world_seconds=0.05) as server,
    ):
        with make(server.address) as env, make(server.address) as other:
            pids = {pid_of(env), pid_of(other)}
            for one in (env, other):
                with pytest.raises(DmEnvRpcError, match="OwnError: told to") as caught:
                    one.step({"do": hosted.RAISE})
                assert "in step" in str(caught.value.details)
                one.step({"do": hosted.WARN})
            stats = server.stats()
            assert (stats.streams, stats.worlds, stats.agents, stats.errors) == (2, 2, 2, 2)
            assert (stats.steps, stats.requests["create_world"]) == (6, 2)
            assert len(pids) == 2
        assert [str(error) for error in server.errors] == ["OwnError: told to"] * 2
        assert "hosted.py" in str(server.errors[0].__cause__)
        with connect(server.address) as connection:
            create_world(connection)
            with pytest.raises(DmEnvRpcError):
                create_world(connection, {"unknown": 1})
        # Its creator is gone.
        assert settles(lambda: server.world_count == 0)
        assert server.stats().refusals == 1
        assert settles(lambda: "its creator is gone" in caplog.text)
        caplog.set_level(logging.DEBUG, LOGGER)

        def tells_of_requests() -> bool:  # The workers have the new level soon.
            make(server.address).close()
            return "sends a create_world request" in caplog.text

        assert settles(tells_of_requests)
    assert caplog.text.count("warned by an environment") == 2
    assert caplog.text.count("OwnError: told to") >= 2
    assert "connected" in caplog.text
    assert "refused a create_world request" in caplog.text


@pytest.mark.parametrize("processes", [1, 2])
def test_what_killed_workers_have_counted_is_told(processes: int) -> None:
    with serve(hosted.make, processes=processes) as server:
        steps = 0
        for replaced, count in enumerate((1_000, 10, 10)):
            ready = workers_of(server)._board.ready
            assert settles(lambda: len(ready()) == processes, START_SECONDS)  # noqa: B023
            with make(server.address) as env:
                pid = pid_of(env)
                for _ in range(count):
                    env.step({"do": 0})
                with pytest.raises(DmEnvRpcError, match="told to"):
                    env.step({"do": hosted.RAISE})
                os.kill(pid, signal.SIGKILL)
                future = env.step_async({"do": 0})
                assert isinstance(future.exception(), ConnectionLostError)
            steps += 1 + count + 1
            errors = 2 * (replaced + 1)
            assert settles(lambda: server.stats().errors == errors)  # noqa: B023
            stats = server.stats()
            # One that was counted may have no answer.
            assert 0 <= stats.steps - steps <= replaced + 1
            assert (stats.streams, stats.agents) == (0, 0)
            done = (stats.all_streams, stats.requests["create_world"], stats.requests["join_world"])
            assert done == (replaced + 1,) * 3
        told = [error for error in server.errors if str(error) == "OwnError: told to"]
        ended = [error for error in server.errors if isinstance(error, ChildProcessError)]
        assert (len(told), len(ended)) == (3, 3)


def test_limits_count_all_processes() -> None:
    limits = Limits(held_bytes=20_000)
    with serve(Where, processes=2, max_connections=3, max_worlds=3, limits=limits) as server:
        with contextlib.ExitStack() as stack:
            connections = [stack.enter_context(connect(server.address)) for _ in range(3)]
            with (
                pytest.raises(ConnectionLostError, match="limit of 3 streams") as lost,
                connect(server.address) as fourth,
            ):
                create_world(fourth)
            assert lost.value.code == "RESOURCE_EXHAUSTED"
            names = [create_world(connection) for connection in connections]
            assert len({name.split("-")[1] for name in names}) == 2
            for connection in connections:
                with pytest.raises(DmEnvRpcError, match="limit of 3 worlds"):
                    create_world(connection)
            destroy_world(connections[0], names[1])
            with pytest.raises(DmEnvRpcError, match="held_bytes"):
                reset_world(connections[0], names[0], {"note": "x" * 20_000})
            reset_world(connections[0], names[0], {"note": "x" * 12_000})
            with pytest.raises(DmEnvRpcError, match="those of other worlds 12"):
                reset_world(connections[0], names[2], {"note": "x" * 12_000})
        assert settles(lambda: server.stats().streams == 0)
        with make(server.address) as env:
            pid_of(env)


def test_properties_of_the_server_are_those_of_its_own_process() -> None:
    values = {"level": 1}

    def fail() -> int:
        raise OSError("no value")

    properties = Properties()
    properties.add("level", lambda: values["level"], lambda level: values.update(level=level))
    properties.add("failing", fail)
    with (
        serve(Where, processes=2, properties=properties) as server,
        connect(server.address) as one,
        connect(server.address) as other,
    ):
        first, second = PropertiesExtension(one), PropertiesExtension(other)
        first["level"] = 7
        assert (second["level"], values["level"]) == (7, 7)
        assert set(second.specs()) == {"level", "failing"}
        for key, text in (("nothing", "no property"), ("failing", "OSError: no value")):
            with pytest.raises(DmEnvRpcError, match=text):
                second.read(key)


def test_tls_and_tokens(tmp_path: Path) -> None:
    key, crt = self_signed(tmp_path)
    tls = Tls(cert=crt, key=key)
    with serve(hosted.make, processes=1, credentials=tls, token="s3cret") as server:
        with make(server.address, credentials=Tls(ca=crt), token="s3cret") as env:
            pid_of(env)
        with pytest.raises(ConnectionLostError, match="UNAUTHENTICATED"):
            make(server.address, credentials=Tls(ca=crt))
        assert server.stats().refused_streams == 1


def test_stopping_lets_steps_end_and_ends_the_processes(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/socket"
    server = serve("tests.server.hosted:make", address, processes=1)
    pids = processes_of(server)
    with make(address) as env:
        assert [pid_of(env)] == pids
        future = env.step_async({"do": hosted.SLEEP})
        assert settles(lambda: server.stats().steps == 2)
        with time_limit(10):
            server.stop(2.0)
        assert future.result().mid()
    assert have_ended(pids)
    assert not (tmp_path / "socket").exists()
    assert server.wait(0.0)
    assert server.stats().steps == 2
    server.stop()


def test_a_forgotten_server_ends() -> None:
    server = serve(Where, processes=1)
    address, pids = server.address, processes_of(server)
    del server
    gc.collect()
    assert settles(lambda: have_ended(pids), 10)
    with pytest.raises(ConnectionLostError):
        connect(address, timeout=0.5)


def test_an_environment_that_ends_its_process_takes_its_own_worlds_only() -> None:
    factory = functools.partial(hosted.make, note="partial")
    with serve(factory, processes=2) as server, contextlib.ExitStack() as stack:
        mine, other, third = (stack.enter_context(connect(server.address)) for _ in range(3))
        names = [create_world(mine), create_world(other)]
        assert names[0].split("-")[1] != names[1].split("-")[1]
        going_on = stack.enter_context(join_world(third, names[0]))
        forwarded = stack.enter_context(join_world(mine, names[1]))
        before = {pid_of(going_on), pid_of(forwarded)}
        text = "the process that this stream's world was in has ended"
        with time_limit(5), pytest.raises(ConnectionLostError, match=text) as caught:
            forwarded.step({"do": hosted.END})
        assert caught.value.code == "UNAVAILABLE"
        with time_limit(5), pytest.raises(ConnectionLostError, match="closed the connection"):
            other.send(dm_env_rpc_pb2.LeaveWorldRequest())
        assert going_on.step({"do": 0}).mid()
        with connect(server.address) as later:
            for request in (
                dm_env_rpc_pb2.JoinWorldRequest(world_name=names[1]),
                dm_env_rpc_pb2.DestroyWorldRequest(world_name=names[1]),
            ):
                with pytest.raises(DmEnvRpcError, match="has ended; create another"):
                    later.send(request)
        assert settles(lambda: len(workers_of(server)._board.ready()) == 2, START_SECONDS)
        with make(server.address) as env:
            assert pid_of(env) not in before
        (error,) = server.errors
        assert "was ended by SIGKILL, its 1 worlds are lost; it is replaced" in str(error)
        assert going_on.step({"do": 0}).mid()


@pytest.mark.row(52)
@counts(1, 10)
def test_a_worker_that_is_stopped_by_a_signal_is_replaced(count: int, seen: Seen) -> None:
    stopwatch = Stopwatch()
    slowest_error = slowest_other = 0.0
    with serve(Where, processes=2) as server:
        for _ in range(count):
            assert settles(lambda: len(workers_of(server)._board.ready()) == 2, START_SECONDS)
            with make(server.address) as env, make(server.address) as going_on:
                stopped = pid_of(env)
                assert pid_of(going_on) != stopped
                before = len(server.errors)
                freeze(stopped)
                begin = time.monotonic()
                future = env.step_async({"do": 0})
                while not future.done():
                    began = time.monotonic()
                    with make(server.address) as other:
                        assert pid_of(other) != stopped
                    slowest_other = max(slowest_other, time.monotonic() - began)
                    assert going_on.step({"do": 0}).mid()
                    time.sleep(0.05)  # A machine with two cores has other things to do, too.
                slowest_error = max(slowest_error, time.monotonic() - begin)
                with pytest.raises(ConnectionLostError, match="closed the connection"):
                    future.result()
            assert settles(lambda: len(server.errors) > before)  # noqa: B023  # runs now
            text = str(server.errors[-1])
            assert f"{stopped} was stopped by a signal for 10 s and was killed, its" in text
            assert text.endswith("worlds are lost; it is replaced")
    seen(stopped_workers=count, error_after_s=slowest_error, other_client_s=slowest_other)
    assert 9.75 <= slowest_error < 20  # The first of the looks is not waited for.
    assert slowest_other < 1.0 + stopwatch.allowance


@pytest.mark.row(52)
def test_stopping_lets_a_stopped_worker_close_its_worlds(tmp_path: Path) -> None:
    server = serve(functools.partial(hosted.Closing, str(tmp_path)), processes=2)
    with make(server.address) as env, make(server.address) as other:
        pids = [pid_of(env), pid_of(other)]
        freeze(pids[0])
        with time_limit(4.0):
            server.stop(2.0)
    assert have_ended(pids)
    assert hosted.closed(tmp_path) == sorted(pids)


@pytest.mark.row(52)
def test_a_worker_that_is_stopped_again_and_again_is_killed_after_the_grace() -> None:
    server = serve(hosted.StopsItself, processes=1)
    (pid,) = processes_of(server)
    with connect(server.address) as connection:
        create_world(connection)
    with time_limit(4.0):
        server.stop(1.0)
    assert have_ended([pid])
    assert "did not stop in time and was killed, not all of its worlds" in str(server.errors[-1])


def test_a_worker_that_holds_the_gil_is_not_killed_and_gets_no_more_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dm_env_rpc_client.server.processes.workers._STOPPED_SECONDS", 0.5)
    with serve(Where, processes=2) as server, contextlib.ExitStack() as stack:
        env = stack.enter_context(make(server.address))
        # So that the one that computes has the fewest worlds.
        more = stack.enter_context(connect(server.address))
        for _ in range(2):
            create_world(more)
        busy = pid_of(env)
        future = env.step_async({"do": hosted.HOLD})
        row = workers_of(server)._board.rows[index_of(server, busy)]

        def hand_over() -> bool:
            stack.enter_context(socket.create_connection(host_port(server.address)))
            time.sleep(0.05)
            return row.is_behind

        assert settles(hand_over, 10)
        with make(server.address) as other:
            assert pid_of(other) != busy
        assert not future.done()
        assert future.result(30).mid()
        assert server.errors == []
        assert settles(lambda: not row.is_behind)


def test_a_replacement_is_used_whatever_its_predecessor_was_last_handed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serve(Where, processes=1) as server:
        (first,) = processes_of(server)
        workers = workers_of(server)
        old = workers._workers[0]

        def say_late(pipe: MessagePipe, *message: Any, descriptor: int | None = None) -> None:
            """Fails when the replacement serves, as a thread that was not scheduled would."""
            if pipe is old.control and message[0] == "client":
                os.kill(first, signal.SIGKILL)
                assert settles(lambda: workers._workers[0] is not old, START_SECONDS)
                assert settles(lambda: bool(workers._board.ready()), START_SECONDS)
            say(pipe, *message, descriptor=descriptor)

        monkeypatch.setattr("dm_env_rpc_client.server.processes.workers.say", say_late)
        with make(server.address, timeout=60) as env:
            assert pid_of(env) != first
        assert workers._board.rows[0].handed == workers._board.rows[0].adopted == 1


@pytest.mark.parametrize(
    ("environment", "options", "text"),
    [
        (lambda: hosted.make(note=""), {}, "environment cannot be given to worker.*of a module"),
        ({"a": lambda: hosted.make(note="")}, {}, "environment 'a' cannot be given"),
        (Race(), {}, "a Race that exists already.*its class"),
        (Where, {"processes": 0}, "processes must be a number from 1 on"),
        (Where, {"processes": True}, "processes must be a number from 1 on"),
        (Where, {"transport": "grpc"}, "with processes takes transport 'http2' or 'auto'"),
        (Where, {"credentials": ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)}, "takes a Tls"),
        (Where, {"idle_world_seconds": -1}, "idle_world_seconds"),
        ("tests.server.hosted:nothing", {}, "cannot import"),
        ("nowhere", {}, "module:factory"),
        (Where, {"default_actions": {"do": threading.Lock()}}, "default_actions cannot be given"),
    ],
)  # fmt: skip
def test_what_processes_cannot_do_is_said_at_once(
    environment: Any, options: dict[str, Any], text: str
) -> None:
    before = set(multiprocessing.active_children())
    with pytest.raises(SpecError, match=text):
        serve(environment, **{"processes": 2, **options})
    assert set(multiprocessing.active_children()) <= before


def test_a_text_names_a_factory_without_processes_too() -> None:
    with serve("tests.server.hosted:make") as server, make(server.address) as env:
        assert pid_of(env) == os.getpid()


def run_program(text: str, *, as_script: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = ["-c", text]
    if as_script is not None:
        as_script.write_text(text)
        command = [str(as_script)]
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=60, check=False
    )


_DEFINED_HERE = """
import dm_env_rpc_client.server as s
class Mine(s.Catch): pass
"""


def test_a_factory_of_an_interactive_session_is_refused_with_advice() -> None:
    ended = run_program(_DEFINED_HERE + "s.serve(Mine, processes=1)")
    assert ended.returncode == 1
    assert "SpecError: a worker process cannot load what it is to serve" in ended.stderr
    assert "write it to a file" in ended.stderr


def test_a_script_needs_its_guard(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    ended = run_program(_DEFINED_HERE + "s.serve(Mine, processes=1)", as_script=path)
    assert ended.returncode == 1
    assert "bootstrapping phase" in ended.stderr
    assert "ChildProcessError: a worker process ended with exit code 1" in ended.stderr
    guarded = """
if __name__ == "__main__":
    import dm_env_rpc_client
    with s.serve(Mine, processes=1) as server, dm_env_rpc_client.make(server.address) as env:
        print(env.reset().step_type.name)
"""
    ended = run_program(_DEFINED_HERE + guarded, as_script=path)
    assert (ended.returncode, ended.stdout) == (0, "FIRST\n"), ended.stderr


def test_the_workers_end_with_the_server_that_is_killed() -> None:
    program = (
        "import multiprocessing, sys, dm_env_rpc_client.server as s\n"
        "server = s.serve(s.Catch, processes=1)\n"
        "print(*(child.pid for child in multiprocessing.active_children()), flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 1
        process.kill()
        assert settles(lambda: have_ended(pids), 15)


def test_a_forked_child_leaves_the_workers_alone(server: Server) -> None:
    with make(server.address, {"environment": "where"}) as env:
        pid = pid_of(env)
        child = os.fork()
        if not child:
            server.stop()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert env.step({"do": 0}).observation["pid"] == pid
