"""The agents in a remote world, in the form that PettingZoo requires; see `parallel_env.py`."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import dm_env
from gymnasium import spaces

from dm_env_rpc_client.adaptors.gymnasium import value_json
from dm_env_rpc_client.adaptors.gymnasium.from_dm_env import check_reward, info_of, wrap
from dm_env_rpc_client.adaptors.gymnasium.proxy import action_writer, observation_reader
from dm_env_rpc_client.adaptors.gymnasium.spaces import from_space, spec_to_space, to_space
from dm_env_rpc_client.adaptors.pettingzoo.description import EXTRAS
from dm_env_rpc_client.environment.base_adaptor import NO_SETTINGS
from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
from dm_env_rpc_client.errors import ProtocolError
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.tensors.structures import single_leaf


class Extras(NamedTuple):
    """Values that accompany an agent's observation.

    Attributes:
      info: the info of the agent.
      is_truncated: whether an agent that was terminated was also truncated.
      present: the names of all agents that take part now; None if no agent is new, or if all take
        part after a reset.
      common: infos that belong to no agent, by key.
      reward: the reward of the step in which the agent begins to take part; None for any other
        step.
      is_observed: whether the environment returned an observation of the agent.
    """

    info: Mapping[str, Any] = NO_SETTINGS
    is_truncated: bool = False
    present: Sequence[str] | None = None
    common: Mapping[str, Any] = NO_SETTINGS
    reward: float | None = None
    is_observed: bool = True


class Seat:
    """An agent in any kind of world, with spaces that are derived from its specs."""

    def __init__(self, env: DmEnvAdaptor):
        check_reward(env)
        self.env = env
        self._action_path, self._action_leaf = single_leaf(env.action_spec())
        self._observation_path, observation_leaf = single_leaf(env.observation_spec())
        self.action_space = spec_to_space(self._action_leaf, "action")
        self.observation_space = spec_to_space(observation_leaf, "observation")

    def wire_action(self, action: Any) -> Any:
        """Convert an action from the action space to the form that is sent to the server."""
        return wrap(self._action_path, from_space(self._action_leaf, action, "action"))

    def observation(self, timestep: dm_env.TimeStep) -> Any:
        """Return the observation of a TimeStep as an element of the observation space."""
        value = timestep.observation
        for key in self._observation_path:
            value = value[key]
        return to_space(self.observation_space, value)

    def extras(self, timestep: dm_env.TimeStep) -> Extras:
        """Return the values sent with the observation."""
        return Extras(info_of(timestep.discount))


class OwnSeat(Seat):
    """An agent in a PettingZoo environment, with that environment's own spaces."""

    def __init__(
        self,
        env: DmEnvAdaptor,
        action_space: spaces.Space[Any],
        observation_space: spaces.Space[Any],
    ):
        self.env = env
        self.action_space, self.observation_space = action_space, observation_space
        self._write_action = action_writer(action_space)
        self._read_observation = observation_reader(observation_space)

    def wire_action(self, action: Any) -> Any:
        return self._write_action(action)

    def observation(self, timestep: dm_env.TimeStep) -> Any:
        return self._read_observation(timestep.observation)

    def extras(self, timestep: dm_env.TimeStep) -> Extras:
        text = str(timestep.observation[EXTRAS])
        if not text:
            return Extras({})
        where = f"observation {EXTRAS!r}"
        value = value_json.decode(text, where)
        try:
            present, reward = value.get("agents"), value.get("reward")
            return Extras(
                dict(value.get("info", {})),
                value.get("truncated") is True,
                None if present is None else list(map(str, present)),
                dict(value.get("common", {})),
                None if reward is None else float(reward),
                value.get("observed") is not False,
            )
        except (AttributeError, TypeError, ValueError) as error:
            raise ProtocolError(f"{where}: {type(error).__name__}: {error}") from error


class Turn:
    """The results of one step or reset for each agent."""

    def __init__(self) -> None:
        self.observations: dict[Hashable, Any] = {}
        self.rewards: dict[Hashable, float] = {}
        self.terminations: dict[Hashable, bool] = {}
        self.truncations: dict[Hashable, bool] = {}
        self.infos: dict[Hashable, dict[str, Any]] = {}

    def add(self, agent: Hashable, seat: Seat, timestep: dm_env.TimeStep) -> None:
        """Add an agent's TimeStep."""
        extras = seat.extras(timestep)
        is_terminated = timestep.last() and seat.env.state is State.TERMINATED
        if extras.is_observed:
            self.observations[agent] = seat.observation(timestep)
        # A server may begin a sequence at any time; its first step has no reward.
        reward = extras.reward if timestep.reward is None else timestep.reward
        self.rewards[agent] = 0.0 if reward is None else float(reward)
        self.terminations[agent] = is_terminated
        self.truncations[agent] = extras.is_truncated or (timestep.last() and not is_terminated)
        self.infos.update(extras.common)
        self.infos[agent] = dict(extras.info)

    def lose(self, agent: Hashable, latest: Mapping[Hashable, Any]) -> None:
        """Add an agent whose step was lost, with a copy of its latest observation, if any."""
        if agent in latest:
            self.observations[agent] = copy.deepcopy(latest[agent])
        self.rewards[agent] = 0.0
        self.terminations[agent] = False
        self.truncations[agent] = True
        self.infos[agent] = {"restarted": True}

    def living(self, agents: Sequence[Hashable]) -> list[Hashable]:
        """Return the given agents whose episodes have not ended."""
        return [
            agent
            for agent in agents
            if agent in self.terminations
            and not (self.terminations[agent] or self.truncations[agent])
        ]
