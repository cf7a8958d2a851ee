"""An agent that learns through the adaptor: the whole stack carries what learning needs."""

from __future__ import annotations

from typing import Any

import dm_env
import numpy as np

from dm_env_rpc_client import make
from dm_env_rpc_client.server import Server


class QLearner:
    """Tabular Q-learning on where the ball is, relative to the paddle."""

    def __init__(self, seed: int):
        self._random = np.random.default_rng(seed)
        self._values: dict[tuple[int, int], Any] = {}

    def _value(self, observation: dict[str, Any]) -> Any:
        board = observation["board"]
        paddle = int(np.argmax(board[-1]))
        row, column = np.argwhere(board)[0]
        state = (int(row), int(column) - paddle)
        return self._values.setdefault(state, np.zeros(3))

    def act(self, timestep: dm_env.TimeStep, epsilon: float) -> int:
        if self._random.random() < epsilon:
            return int(self._random.integers(3))
        return int(np.argmax(self._value(timestep.observation)))

    def learn(self, before: dm_env.TimeStep, action: int, after: dm_env.TimeStep) -> None:
        target = after.reward + after.discount * np.max(self._value(after.observation))
        value = self._value(before.observation)
        value[action] += 0.5 * (target - value[action])


def run_episode(env: dm_env.Environment, agent: QLearner, epsilon: float) -> float:
    timestep, episode_return = env.reset(), 0.0
    while not timestep.last():
        action = agent.act(timestep, epsilon)
        following = env.step({"paddle": action})
        if epsilon:
            agent.learn(timestep, action, following)
        episode_return += float(following.reward)
        timestep = following
    return episode_return


def test_an_agent_learns_catch_through_the_adaptor(catch_server: Server) -> None:
    agent = QLearner(seed=0)
    with make(catch_server.address, {"rows": 8, "columns": 5, "seed": 0}) as env:
        untrained = np.mean([run_episode(env, agent, 0.0) for _ in range(30)])
        for episode in range(400):
            run_episode(env, agent, epsilon=max(0.1, 1 - episode / 200))
        mean_return = np.mean([run_episode(env, agent, 0.0) for _ in range(100)])
    print(f"mean return {untrained:.2f} before learning, {mean_return:.2f} after")
    assert mean_return >= 0.9
    assert untrained < 0.5
