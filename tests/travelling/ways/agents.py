"""Clients of PettingZoo, and the environment in this process."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from typing import Any

from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv
from tests.travelling.environments.habits import Habit
from tests.travelling.in_process import action_of, element
from tests.travelling.told import Call, Event, Failed, Lost, Opened, Tale, Told, kept
from tests.travelling.ways.gymnasium_clients import failed


def agents_alone(habit: Habit) -> list[Tale]:
    """Plays an environment of PettingZoo in this process."""
    env = habit.make(0)
    tale: Tale = [_opened(env)]
    for position, call in enumerate(habit.calls):
        refused = habit.refused.get(position)
        event: Event = Lost()
        with contextlib.suppress(OSError):
            event = copy.deepcopy(_called(env, call, position))
            if refused is None:
                event = _sent(env, event)
        tale.append(event if refused is None else Failed("INTERNAL", "", *refused))
    return [tale]


def _sent(env: Any, event: Any) -> Told:
    agents, observations = event.observation
    seen = {
        agent: element(env.observation_space(agent), each) for agent, each in observations.items()
    }
    told: Told = event._replace(observation=(agents, seen))
    if event.reward is None:
        return told
    rewards = {agent: float(each) for agent, each in event.reward.items()}
    return told._replace(reward=rewards)


def play_parallel(address: str, habit: str, calls: Sequence[Call], **options: Any) -> list[Tale]:
    """Plays all agents, by `RemoteParallelEnv`."""
    with contextlib.closing(RemoteParallelEnv(address, None, {"habit": habit}, **options)) as env:
        tale: Tale = [_opened(env)]
        for position, call in enumerate(calls):
            try:
                tale.append(kept(_called(env, call, position)))
            except Exception as error:
                tale.append(failed(error))
    return [tale]


def _opened(env: Any) -> Opened:
    agents = env.possible_agents
    return Opened(
        {agent: env.action_space(agent) for agent in agents},
        {agent: env.observation_space(agent) for agent in agents},
    )


def _called(env: Any, call: Call, position: int) -> Event:
    if call == "s":
        actions = {
            agent: action_of(env.action_space(agent), position, number)
            for number, agent in enumerate(env.agents)
        }
        observations, *others, infos = map(_by_agent, env.step(actions))
        return Told((list(env.agents), observations), infos, *others)
    given = {"seed": 5, "options": {"x": 1}} if call == "R" else {}
    observations, infos = map(_by_agent, env.reset(**given))
    return Told((list(env.agents), observations), infos)


def _by_agent(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """A mapping whose keys are agents, in one order."""
    return dict(sorted(values.items(), key=lambda item: str(item[0])))
