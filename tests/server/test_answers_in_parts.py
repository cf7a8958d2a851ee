"""Large answers go to the socket in parts, from arrays that the next step changes."""

from __future__ import annotations

from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client import BatchedEnvironment, make
from dm_env_rpc_client.server import serve
from dm_env_rpc_client.transports.http2.server.connection import ServerConnection
from dm_env_rpc_client.transports.server_streams import Parts
from tests.server.structures.hosted import Structured, array

SIZE = 1 << 22
"""16 MiB of float32, of which the socket takes only a part while nothing reads."""


ACTION = {"action": specs.DiscreteArray(2)}


def in_place(size: int = SIZE) -> Structured:
    """Writes the number of the step into the same array each time."""
    kept = np.zeros(size, np.float32)

    def observe(step: int) -> dict[str, Any]:
        kept[:] = step + 1
        return {"large": kept, "number": np.float64(step + 1)}

    spec = {"large": specs.Array((size,), np.float32), "number": array()}
    return Structured(spec, ACTION, observe=observe)


@pytest.fixture
def unsent(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each answer sent in parts, whether the socket has left some of it."""
    found: list[bool] = []
    send = ServerConnection.send_alone

    def noted(own: ServerConnection, call: Any, answer: Any) -> bool:
        is_sent = send(own, call, answer)
        if isinstance(answer, Parts):
            found.append(bool(own.half.framing.sending.outbound))
        return is_sent

    monkeypatch.setattr(ServerConnection, "send_alone", noted)
    return found


def is_all(timestep: dm_env.TimeStep, number: int) -> bool:
    observation = timestep.observation
    return bool((observation["large"] == number).all()) and observation["number"] == number


def test_what_the_socket_does_not_take_is_not_changed_by_the_next_step(
    unsent: list[bool],
) -> None:
    with serve(in_place) as server, make(server.address) as env:
        assert is_all(env.reset(), 1)
        for number in range(2, 6):
            assert is_all(env.step({"action": 1}), number)
        steps = [env._start_step(env._prepare_step({"action": 1})) for _ in range(6)]
        for number, step in enumerate(steps, 6):
            assert is_all(env._finish_step(step), number)
        assert is_all(env.step({"action": 0}), 12)
    assert True in unsent, "the socket has taken all of each answer"


@pytest.mark.parametrize("size", [1, 4_000, 5_000, 20_000, 70_000])
def test_answers_of_any_size_are_whole(size: int) -> None:
    with serve(lambda: in_place(size)) as server:
        with make(server.address) as env:
            assert is_all(env.reset(), 1)
            for number in range(2, 30):
                assert is_all(env.step({"action": 1}), number)
            for number, timestep in enumerate(env.rollout([{"action": 1}] * 20), 30):
                assert is_all(timestep, number)
        with BatchedEnvironment(server.address, 3) as rows:
            rows.reset()
            for number in range(2, 8):
                timestep = rows.step({"action": np.ones(3, np.int32)})
                assert (timestep.observation["large"] == number).all()
                assert timestep.observation["number"].tolist() == [number] * 3


def many(count: int) -> Structured:
    """Has so many observations that one system call would not take their parts."""
    spec = {f"observation {number}": array(100) for number in range(count)}
    return Structured(spec, {}, observe=lambda step: dict.fromkeys(spec, np.full(100, step + 1.0)))


@pytest.mark.parametrize("count", [64, 65, 700])
def test_an_answer_of_many_observations_is_whole(count: int) -> None:
    with serve(lambda: many(count)) as server, make(server.address) as env:
        env.reset()
        for number in range(2, 6):
            observation = env.step({}).observation
            assert len(observation) == count
            assert all((array == number).all() for array in observation.values())
