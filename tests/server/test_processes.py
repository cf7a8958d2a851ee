"""A server whose worlds live in worker processes."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from dm_env_rpc_client import (
    BatchedEnvironment,
    Connection,
    ConnectionLostError,
    DmEnvAdaptor,
    DmEnvRpcError,
    connect,
    create_and_join_world,
    create_world,
    destroy_world,
    dm_env_rpc_pb2,
    join_world,
    make,
    reset_world,
)
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.protocol import envelopes
from dm_env_rpc_client.protocol.pipeline import Pending
from dm_env_rpc_client.server import Properties, Race, Server, serve
from dm_env_rpc_client.server.processes.messages import Requests
from dm_env_rpc_client.system.message_pipe import MessagePipe
from dm_env_rpc_client.tensors.memory_limits import Limits
from tests.server import hosted
from tests.server.hosted import Where
from tests.server.worker_processes import elsewhere, pid_of, process_with, processes_of
from tests.support.programs import processor_seconds, run_python
from tests.support.scripted import settles

LOGGER = "dm_env_rpc_client.server"


@pytest.fixture(scope="module")
def _server() -> Iterator[Server]:
    level = [1]
    properties = Properties()
    properties.add("level", lambda: level[0], lambda value: level.__setitem__(0, value))
    properties.add("failing", lambda: 1 / 0)
    served = {"where": Where, "race": Race, "process": hosted.WithProcess}
    with serve(served, processes=2, properties=properties) as one:
        yield one


@pytest.fixture
def server(_server: Server) -> Iterator[Server]:
    """A server that the tests of this file share; nothing is left on it."""
    yield _server
    assert settles(lambda: (_server.world_count, _server.agent_count) == (0, 0))
    assert settles(lambda: _server.stats().streams == 0)


@pytest.mark.parametrize("num_batches", [0, None, 2])
def test_environments_of_one_client_are_spread(server: Server, num_batches: int | None) -> None:
    settings = {"environment": "where"}
    with BatchedEnvironment(server.address, 8, settings, num_batches=num_batches) as batch:
        pids = batch.reset().observation["pid"].tolist()
        assert sorted(pids.count(pid) for pid in set(pids)) == [4, 4]
        assert os.getpid() not in pids
        stats = server.stats()
        streams = {0: 8, None: 1, 2: 2}[num_batches]
        assert (stats.streams, stats.worlds, stats.agents) == (streams,) * 3


def test_streams_on_one_connection_of_grpcio_are_spread(server: Server) -> None:
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


def test_what_is_large_is_passed_on_whole(server: Server) -> None:
    with elsewhere(server) as (connection, name):
        reset_world(connection, name, {"note": "x" * 3_000_000})
        with join_world(connection, name) as env:
            pid_of(env)


def test_steps_in_flight_are_passed_on_in_order(server: Server) -> None:
    with elsewhere(server) as (connection, name), join_world(connection, name) as env:
        pid = pid_of(env)
        futures = [env.step_async({"do": 0}) for _ in range(200)]
        assert {int(future.result().observation["pid"]) for future in futures} == {pid}


def race(env: DmEnvAdaptor) -> list[int]:
    """Runs a race as one of its players; returns where it saw all of them at the end."""
    timestep = env.reset()
    while not timestep.last():
        timestep = env.step({"move": 1})
    positions: list[int] = timestep.observation["positions"].tolist()
    return positions


def test_players_on_several_connections_share_a_game(server: Server) -> None:
    settings = {"environment": "race", "players": 4, "length": 3}
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(server.address)) for _ in range(4)]
        name = create_world(connections[0], settings)
        stack.callback(destroy_world, connections[0], name)
        envs = [stack.enter_context(join_world(each, name)) for each in connections]
        with concurrent.futures.ThreadPoolExecutor() as threads:
            assert list(threads.map(race, envs)) == [[3, 3, 3, 3]] * 4


def test_a_client_that_is_gone_waits_no_longer_in_another_process(server: Server) -> None:
    with elsewhere(server, "race") as (connection, name):
        with connect(server.address) as second, join_world(second, name) as env:
            lost = connect(server.address)
            waiting = join_world(lost, name)
            threading.Thread(target=env.reset, daemon=True).start()
            waiting.reset()
            future = waiting.step_async({"move": 1})  # Waits for the other player.
            assert settles(lambda: server.agent_count == 2)
            lost._stream.abort()
            assert settles(lambda: server.agent_count == 1)
            with pytest.raises(ConnectionError):
                future.result(10)
            lost.close()
        assert connection.is_usable


def test_a_message_that_is_no_request_ends_a_stream(server: Server) -> None:
    with elsewhere(server) as (connection, name), connection.reopen() as another:
        join_world(another, name)
        encoded = envelopes.encode_request(dm_env_rpc_pb2.StepRequest())
        pending = Pending(encoded._replace(message=encoded.message[:1] + b"\xff"))
        another._send(pending)
        with pytest.raises(ConnectionLostError, match="not an EnvironmentRequest") as lost:
            another.wait(pending)
        assert lost.value.code == "INVALID_ARGUMENT"


def test_properties_are_those_of_the_servers_own_process(server: Server) -> None:
    with connect(server.address) as one, connect(server.address) as other:
        first, second = PropertiesExtension(one), PropertiesExtension(other)
        first["level"] = 7
        assert second["level"] == 7
        assert {"level", "failing"} <= set(second.specs())
        for key, text in (("nothing", "no property"), ("failing", "ZeroDivisionError: division")):
            with pytest.raises(DmEnvRpcError, match=text):
                second.read(key)


def test_an_idle_server_takes_no_processor_time(server: Server) -> None:
    assert server.world_count == 0
    pids = [os.getpid(), *processes_of(server)]
    assert len(pids) == 3
    begin = sum(map(processor_seconds, pids))
    time.sleep(1.0)  # The time in which it does nothing is what is measured.
    assert sum(map(processor_seconds, pids)) - begin < 0.1


def test_an_environment_may_have_processes_of_its_own(server: Server) -> None:
    with make(server.address, {"environment": "process"}, request_timeout=60) as env:
        assert pid_of(env) != os.getpid()


def test_what_is_counted_logged_and_raised_reaches_the_servers_own_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with serve(hosted.make, processes=2, idle_world_seconds=0.05) as server:
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


def test_limits_count_all_processes() -> None:
    limits = Limits(held_bytes=20_000)
    with serve(Where, processes=2, max_connections=3, max_worlds=3, limits=limits) as server:
        with contextlib.ExitStack() as stack:
            connections = [stack.enter_context(connect(server.address)) for _ in range(3)]
            # The streams of some may be seen after the next one.
            assert settles(lambda: server.stats().streams == 3)
            expected = pytest.raises(ConnectionLostError, match="limit of 3 streams")
            with expected as lost, connect(server.address) as fourth:
                create_world(fourth)
            assert lost.value.code == "RESOURCE_EXHAUSTED"
            names = [create_world(connection) for connection in connections]
            assert len({process_with(server, name) for name in names}) == 2
            for connection in connections:
                with pytest.raises(DmEnvRpcError, match="limit of 3 worlds"):
                    create_world(connection)
            destroy_world(connections[0], names[1])
            with pytest.raises(DmEnvRpcError, match="held_bytes"):
                reset_world(connections[0], names[0], {"note": "x" * 20_000})
            reset_world(connections[0], names[0], {"note": "x" * 12_000})
            with pytest.raises(DmEnvRpcError, match="other worlds' settings take 12"):
                reset_world(connections[0], names[2], {"note": "x" * 12_000})
        assert settles(lambda: server.stats().streams == 0)
        with make(server.address) as env:
            pid_of(env)


_DEFINED_HERE = """
import dm_env_rpc_client.server as s
class Mine(s.Catch): pass
"""


def test_a_factory_of_an_interactive_session_is_refused_with_advice() -> None:
    ended = run_python("-c", _DEFINED_HERE + "s.serve(Mine, processes=1)", code=1)
    assert "SpecError: a worker process cannot load its environment" in ended.stderr
    assert "write it to a file" in ended.stderr


def test_a_script_needs_its_guard(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(_DEFINED_HERE + "s.serve(Mine, processes=1)")
    ended = run_python(path, code=1)
    assert "bootstrapping phase" in ended.stderr
    assert "ChildProcessError: a worker process ended with exit code 1" in ended.stderr
    guarded = """
if __name__ == "__main__":
    import dm_env_rpc_client
    with s.serve(Mine, processes=1) as server, dm_env_rpc_client.make(server.address) as env:
        print(env.reset().step_type.name)
"""
    path.write_text(_DEFINED_HERE + guarded)
    assert run_python(path).stdout == "FIRST\n"


def test_a_forked_child_leaves_the_workers_alone(server: Server) -> None:
    with make(server.address, {"environment": "where"}) as env:
        pid = pid_of(env)
        child = os.fork()
        if not child:
            server.stop()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert env.step({"do": 0}).observation["pid"] == pid


def test_requests_to_a_worker_end_if_an_answer_was_not_received() -> None:
    """As after an interrupt: the answer would be taken for that to the next request."""
    own, other = MessagePipe.pair()
    with contextlib.closing(own), contextlib.closing(other):
        requests = Requests(own)
        requests.begin(b"first")
        other.send(bytes(other.receive().message))
        assert requests.end() == b"first"
        requests.begin(b"second")
        other.send(bytes(other.receive().message))
        for message in (b"third", b"fourth"):
            with pytest.raises(OSError, match="pipe"):
                requests.begin(message)
