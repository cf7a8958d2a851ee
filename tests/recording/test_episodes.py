"""The episodes of a recording are those that the agent saw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dm_env_rpc_client
from dm_env_rpc_client import dm_env_rpc_pb2
from dm_env_rpc_client.errors import DmEnvRpcError, RecordingError, SpecError
from dm_env_rpc_client.protocol import timesteps
from dm_env_rpc_client.recording import Recorder, Scan, episodes, read
from dm_env_rpc_client.server import Server
from tests.recording.sessions import SETTINGS, assert_same, move, play, record


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


def test_an_episode_that_was_not_ended_is_unfinished(server: Server, path: Path) -> None:
    with Recorder(path) as recorder:
        env = dm_env_rpc_client.make(server.address, SETTINGS, record=recorder)
        env.reset()
        env.step({"paddle": 1})
        recorder.settle()
        (episode,) = read(path).episodes
        assert (len(episode), episode.end) == (2, "unfinished")
        env.close()


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


def test_a_connection_that_breaks_the_protocol_hides_no_other(server: Server, path: Path) -> None:
    with Recorder(path) as recorder:
        broken = recorder.connection("localhost:1", {})
        broken.request(dm_env_rpc_pb2.EnvironmentRequest(create_world={}).SerializeToString())
        broken.answer(b"\xff\xff")
        broken.answer(b"")
        play(server.address, 9, record=recorder)
    taken = []
    reading = episodes(path)
    for _ in range(2):
        episode = next(reading)
        taken.append((episode.connection.number, len(episode), episode.end))
    assert taken == [(2, 5, "terminated"), (2, 5, "terminated")]
    with pytest.raises(RecordingError, match="answer 1 of connection 1 breaks the protocol"):
        next(reading)
