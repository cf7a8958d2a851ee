"""Replays, episodes and proxies: what was recorded is what was seen, and nothing else changes."""

from __future__ import annotations

import concurrent.futures
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dm_env
import grpc
import numpy as np
import pytest

import dm_env_rpc_client
from dm_env_rpc_client import Tls, dm_env_rpc_pb2
from dm_env_rpc_client.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvRpcError,
    RecordingError,
    SpecError,
)
from dm_env_rpc_client.protocol import timesteps
from dm_env_rpc_client.recording import Recorder, Scan, episodes, proxy, read, replay
from dm_env_rpc_client.server import Catch, Race, Server, serve
from dm_env_rpc_client.testing import ScriptedServer
from dm_env_rpc_client.transports.endpoint import Endpoint
from dm_env_rpc_client.transports.opening import open_stream
from tests.recording import sessions
from tests.recording.sessions import SETTINGS, assert_same, entries, messages, move, play, record
from tests.reliability.scorecard import counts
from tests.support.certificates import self_signed
from tests.support.scripted import settles
from tests.support.stopwatch import patience

ARENA = dm_env_rpc_pb2.EnvironmentResponse(create_world={"world_name": "arena"}).SerializeToString()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "run.mcap"
    with serve(Catch) as server:
        play(server.address, 30, record=path)
    return path


@counts(1_000, 100_000, seconds=600)
def test_a_session_is_replayed_bit_for_bit(tmp_path: Path, count: int) -> None:
    first, second = tmp_path / "first.mcap", tmp_path / "second.mcap"
    with serve(Catch) as server:
        expected = play(server.address, count, record=first)
    with replay(first) as replayed:
        assert_same(expected, play(replayed.address, count, record=second))
    assert len(messages(first)) == 2 * (count + 5)
    assert messages(first) == messages(second)


@pytest.mark.parametrize("transport", ["http2", "grpc"])
def test_what_was_unrolled_can_be_stepped(path: Path, transport: Any) -> None:
    actions = [{"paddle": step % 3} for step in range(24)]  # Two sequences, of ten steps each.
    with sessions.recorded(path, Catch) as env:
        expected = env.unroll(actions)
    with (
        replay(path) as replayed,
        dm_env_rpc_client.make(replayed.address, transport=transport) as env,
    ):
        got: list[dm_env.TimeStep] = []
        for action in actions:
            got.append(env.step(action) if got and not got[-1].last() else env.reset())
    for name, column in expected.observation.items():
        np.testing.assert_array_equal(column, [each.observation[name] for each in got])
    assert [each.step_type for each in got] == list(expected.step_type)
    # In the middle of a sequence actions count.
    with replay(path) as replayed, dm_env_rpc_client.make(replayed.address) as env:
        env.reset()
        with pytest.raises(DmEnvRpcError, match="request 4 of connection 1"):
            env.step({"paddle": 0})


def test_a_lenient_replay_says_where_it_deviates(
    recorded: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with replay(recorded) as replayed:
        expected = play(replayed.address, 30)
    with (
        replay(recorded, lenient=True) as replayed,
        dm_env_rpc_client.make(replayed.address, {**SETTINGS, "seed": 4}) as env,
    ):
        got = [env.reset(), *(env.step({"paddle": 1}) for _ in range(30))]
        assert_same(expected, got)
        # There is no recorded answer to another kind of request.
        with pytest.raises(DmEnvRpcError, match="expected leave_world"):
            env.step({"paddle": 1})
    first, last = [each.getMessage() for each in caplog.records if "deviat" in each.getMessage()]
    assert first.startswith("the first deviation: request 1 of connection 1 of the recording")
    assert 'key: "seed" value { int64s { array: 4 } }' in first.partition("; expected ")[0]
    assert last.endswith("requests of connection 1 deviated from the recording run.mcap")


def test_another_request_is_told_from_the_recorded_one(recorded: Path) -> None:
    with replay(recorded) as replayed:
        with pytest.raises(DmEnvRpcError) as refused:
            dm_env_rpc_client.make(replayed.address, {**SETTINGS, "seed": 4})
        assert refused.value.code_name == "FAILED_PRECONDITION"
        assert 'key: "seed" value { int64s { array: 4 } }' in refused.value.message
        assert "expected create_world" in refused.value.message
        with dm_env_rpc_client.make(replayed.address, SETTINGS) as env:
            env.reset()
            with pytest.raises(DmEnvRpcError) as refused:
                env.step({"paddle": 2})
            assert "request 4 of connection 1 of the recording run.mcap" in refused.value.message
            assert "array: 2" in refused.value.message.partition("; expected ")[0]
            assert "array: 0" in refused.value.message.partition("; expected ")[2]
            # Nothing has changed: the recorded request may follow.
            assert env.step({"paddle": 0}).mid()


def test_after_the_last_request_and_without_an_answer(path: Path) -> None:
    create = dm_env_rpc_pb2.CreateWorldRequest()
    request = dm_env_rpc_pb2.EnvironmentRequest(create_world=create).SerializeToString()
    with Recorder(path) as recorder:
        recording = recorder.connection("localhost:1", {})
        recording.request(request)
        recording.request(request)
        recording.answer(ARENA)
    with replay(path) as replayed, dm_env_rpc_client.connect(replayed.address) as connection:
        assert connection.send(create).world_name == "arena"
        for _ in range(2):
            with pytest.raises(DmEnvRpcError, match=r"request 2 .* has no recorded answer"):
                connection.send(create)
    whole = path.with_name("whole.mcap")
    record(whole, (request, ARENA))
    with replay(whole) as replayed, dm_env_rpc_client.connect(replayed.address) as connection:
        connection.send(create)
        with pytest.raises(DmEnvRpcError, match="only 1 requests were recorded") as refused:
            connection.send(create)
        assert refused.value.code_name == "OUT_OF_RANGE"


def test_each_connection_gets_a_recorded_one_that_begins_alike(path: Path) -> None:
    with serve(Catch) as server, Recorder(path) as recorder:
        for rows in (4, 5, 5):
            with dm_env_rpc_client.connect(server.address, record=recorder) as connection:
                dm_env_rpc_client.create_world(connection, {"rows": rows})
    with replay(path) as replayed:

        def name(rows: int) -> str:
            with dm_env_rpc_client.connect(replayed.address) as connection:
                return dm_env_rpc_client.create_world(connection, {"rows": rows})

        assert [name(rows) for rows in (5, 4, 5, 5, 4)] == [
            "world-2", "world-1", "world-3", "world-2", "world-1"
        ]  # fmt: skip


def test_environments_of_a_batch_are_told_apart_by_their_settings(path: Path) -> None:
    def session(address: str, **options: Any) -> list[dm_env.TimeStep]:
        settings = [{**SETTINGS, "seed": seed} for seed in range(4)]
        with dm_env_rpc_client.BatchedEnvironment(address, 4, settings, **options) as envs:
            actions = [{"paddle": (np.arange(4) + step) % 3} for step in range(12)]
            return [envs.reset(), *map(envs.step, actions)]

    with serve(Catch) as server:
        expected = session(server.address, record=path)
    with replay(path) as replayed:
        for some, other in zip(expected, session(replayed.address), strict=True):
            np.testing.assert_equal(some._asdict(), other._asdict())


def test_messages_of_a_later_version_are_replayed_too(path: Path) -> None:
    unknown = b"\xf8\x07\x01"  # field 127
    create = dm_env_rpc_pb2.EnvironmentRequest(create_world={}).SerializeToString()
    exchanges = [(unknown, b"\xf8\x07\x02"), (create + unknown, b"\xf8\x07\x03")]
    record(path, *exchanges)
    with replay(path) as replayed:
        stream = open_stream(Endpoint(replayed.address), 10)
        try:
            for request, answer in exchanges:
                stream.write(request)
                found = stream.read(30)
                assert found is not None
                assert bytes(found) == answer
        finally:
            stream.close(1)


def permuted_settings() -> Iterator[bytes]:
    """A request in all orders of its settings, as different processes write them."""
    one = dm_env_rpc_pb2.CreateWorldRequest(
        settings={name: dm_env_rpc_client.pack_tensor(value) for name, value in SETTINGS.items()}
    )
    payload = one.SerializeToString(deterministic=True)
    entries = []
    while payload:
        size = payload[1] + 2
        entries.append(payload[:size])
        payload = payload[size:]
    for order in itertools.permutations(entries):
        content = b"".join(order)
        yield bytes([1 << 3 | 2, len(content)]) + content


def test_the_order_of_settings_makes_no_difference(path: Path) -> None:
    first, *others = permuted_settings()
    assert len({first, *others}) == 6
    record(path, *((request, ARENA) for request in others))
    with replay(path) as replayed, dm_env_rpc_client.connect(replayed.address) as connection:
        for _ in others:
            assert dm_env_rpc_client.create_world(connection, SETTINGS) == "arena"


def test_what_cannot_be_replayed(path: Path, recorded: Path) -> None:
    Recorder(path).close()
    assert read(path).is_complete
    with pytest.raises(RecordingError, match=r"run.mcap contains no requests"):
        replay(path)
    with pytest.raises(SpecError, match="plaintext"):
        replay(recorded, "0.0.0.0:0")


def test_episodes_are_what_the_agent_saw(server: Server, path: Path) -> None:
    seen = play(server.address, 22, record=path)
    found = read(path).episodes
    assert [len(episode) for episode in found] == [5, 5, 5, 5, 3]
    assert [episode.end for episode in found] == ["terminated"] * 4 + ["interrupted"]
    assert [episode.number for episode in found] == [1, 2, 3, 4, 5]
    assert_same(seen, [step for episode in found for step in episode.flat_timesteps])
    for index, episode in enumerate(found):
        part = seen[5 * index : 5 * index + 5]
        np.testing.assert_equal(episode.timesteps._asdict(), timesteps.stack(part)._asdict())
        moves = [move(5 * index + step)["paddle"] for step in range(len(part) - 1)]
        np.testing.assert_array_equal(episode.actions["paddle"], moves)
        assert episode.episode_return == sum(step.reward or 0.0 for step in part)
        assert 0 < episode.seconds < 60
        assert episode.began.tzinfo is not None


def test_a_reset_ends_an_episode_and_errors_do_not(server: Server, path: Path) -> None:
    env = dm_env_rpc_client.make(server.address, SETTINGS, record=path)
    env.reset()
    env.step({"paddle": 1})
    with pytest.raises(DmEnvRpcError):
        env.connection.send(dm_env_rpc_pb2.StepRequest(requested_observations=[99]))
    env.step({"paddle": 1})
    env.reset()
    env.step({"paddle": 1})
    env.close()
    found = read(path).episodes
    ends = [(len(episode), episode.end) for episode in found]
    assert ends == [(3, "interrupted"), (2, "interrupted")]


def test_steps_that_leave_actions_out_have_no_stack_of_actions(server: Server, path: Path) -> None:
    with dm_env_rpc_client.make(server.address, record=path) as env:
        env.reset()
        env.step({})
    (episode,) = read(path).episodes
    assert episode.flat_actions == [{}, {}]
    with pytest.raises(SpecError, match=r"step 1 of episode 1 has no action 'paddle'"):
        episode.actions  # noqa: B018


def test_agents_of_several_connections_are_told_apart(server: Server, path: Path) -> None:
    with Recorder(path) as recorder:
        one = dm_env_rpc_client.make(server.address, SETTINGS, record=recorder)
        other = dm_env_rpc_client.make(server.address, {**SETTINGS, "rows": 6}, record=recorder)
        for env in (one, other) * 3:
            env.step({"paddle": 1})
        one.close()
        other.close()
    found = list(episodes(path))
    assert {episode.connection.number: len(episode) for episode in found} == {1: 3, 2: 3}
    assert found[1].flat_timesteps[0].observation["board"].shape == (6, 4)
    scan = Scan(path)
    assert len(list(episodes(scan))) == 2
    assert (len(scan.connections), scan.is_complete) == (2, True)


@pytest.mark.parametrize(
    ("request_message", "answer"),
    [
        (b"\xff", b""),
        (None, b"\xff\xff"),
        (None, dm_env_rpc_pb2.EnvironmentResponse(step={"state": 1}).SerializeToString()),
    ],
)
def test_what_breaks_the_protocol_is_named(
    path: Path, request_message: bytes | None, answer: bytes
) -> None:
    create = dm_env_rpc_pb2.EnvironmentRequest(create_world={}).SerializeToString()
    record(path, (create if request_message is None else request_message, answer))
    with pytest.raises(RecordingError, match=r"(request|answer) 1 of connection 1 breaks"):
        read(path)


@pytest.mark.parametrize("transport", ["http2", "grpc"])
def test_a_session_through_a_proxy_is_the_same_and_is_recorded(
    server: Server, path: Path, transport: Any
) -> None:
    expected = play(server.address, 60)
    with proxy(server.address, path) as running:
        assert_same(expected, play(running.address, 60, transport=transport))
    recording = read(path)
    assert recording.is_complete
    assert recording.connections[1].address == server.address
    assert sum(map(len, recording.episodes)) == 61
    with replay(path) as replayed:
        assert_same(expected, play(replayed.address, 60))


def test_agents_that_wait_for_one_another_do_not_wait_for_ever(path: Path) -> None:
    with (
        serve(Race()) as server,
        proxy(server.address, path) as running,
        concurrent.futures.ThreadPoolExecutor(2) as pool,
    ):

        def run(_: int) -> int:
            with (
                dm_env_rpc_client.connect(running.address) as connection,
                dm_env_rpc_client.join_world(connection, "") as env,
            ):
                steps = [env.reset()]
                while not steps[-1].last():
                    steps.append(env.step(dict.fromkeys(env.action_spec(), 1)))
                return len(steps)

        assert min(pool.map(run, range(2))) > 1
    assert len(read(path).connections) == 2


@pytest.mark.certificates
def test_the_server_may_require_tls_and_a_token_which_is_forwarded_and_not_recorded(
    path: Path, tmp_path: Path
) -> None:
    key, crt = self_signed(tmp_path)
    tls = Tls(cert=crt, key=key)
    with (
        serve(Catch, credentials=tls, token="hunter2") as server,
        proxy(server.address, path, credentials=Tls(ca=crt)) as running,
    ):
        assert len(play(running.address, 5, token="hunter2")) == 6
        with pytest.raises(ConnectionLostError, match="UNAUTHENTICATED") as refused:
            dm_env_rpc_client.make(running.address)
        assert refused.value.code == "UNAUTHENTICATED"
    connection = read(path).connections[1]
    assert connection.metadata["tls"] == "true"
    assert b"hunter2" not in path.read_bytes() + b"".join(each.message for each in entries(path))


def test_metadata_is_forwarded(path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def script(requests: Any, context: grpc.ServicerContext) -> Any:
        seen.append(dict(context.invocation_metadata()))
        for _ in requests:
            yield dm_env_rpc_pb2.EnvironmentResponse(create_world={})

    sent: list[tuple[str, str | bytes]] = [("x-run", "7"), ("x-key-bin", b"\x00\xff")]
    with ScriptedServer(script) as server, proxy(server.address, path, token="own") as running:
        with dm_env_rpc_client.connect(running.address, metadata=sent) as connection:
            connection.send(dm_env_rpc_pb2.CreateWorldRequest())
        with dm_env_rpc_client.connect(running.address, token="theirs") as connection:
            connection.send(dm_env_rpc_pb2.CreateWorldRequest())
    assert {"x-run": "7", "x-key-bin": b"\x00\xff"}.items() <= seen[0].items()
    # The token of the proxy is for clients that send none.
    assert seen[0]["authorization"] == "Bearer own"
    assert seen[1]["authorization"] == "Bearer theirs"


def test_a_server_that_ends_a_stream_is_told(path: Path) -> None:
    with (
        ScriptedServer(lambda requests, _: iter(())) as server,
        proxy(server.address, path) as running,
        dm_env_rpc_client.connect(running.address) as connection,
        pytest.raises(ConnectionLostError, match="the proxy says"),
    ):
        connection.send(dm_env_rpc_pb2.CreateWorldRequest())


def test_a_client_that_goes_away_while_a_step_waits(path: Path) -> None:
    with serve(Race()) as server, proxy(server.address, path) as running:
        connection = dm_env_rpc_client.connect(running.address, request_timeout=patience(0.5))
        env = dm_env_rpc_client.join_world(connection, "")
        with pytest.raises(DeadlineExceededError):
            env.reset()  # Nobody else is there.
        connection.close()
        assert settles(lambda: server.agent_count == 0)
    assert len(entries(path)) == 3
