"""A `Game` with which servers run PettingZoo environments.

Clients that support PettingZoo also receive values that have no counterpart in dm_env; see
`description`.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Any

import dm_env
import numpy as np
import pettingzoo
import tree
from dm_env import specs
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.env_registry.exceptions import NameNotFound, NamespaceNotFound
from pettingzoo.utils import aec_to_parallel, turn_based_aec_to_parallel

from dm_env_rpc_client.adaptors.gymnasium import elements, value_json
from dm_env_rpc_client.adaptors.gymnasium.returns import as_reward
from dm_env_rpc_client.adaptors.gymnasium.to_dm_env import (
    OBSERVATION,
    encoded_frame,
    reset_arguments,
)
from dm_env_rpc_client.adaptors.pettingzoo.description import (
    DESCRIPTION,
    EXTRAS,
    FRAME,
    STATE,
    Description,
    describe,
)
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.server.errors import (
    environment_error,
    environments_own,
    in_request,
)
from dm_env_rpc_client.server.properties import Properties
from dm_env_rpc_client.server.worlds.world import Game
from dm_env_rpc_client.system.foreign_environments import class_name, described, explain_unpacking
from dm_env_rpc_client.tensors import nesting

_STEP = "(observations, rewards, terminations, truncations, infos), each a dict by agent"
_RESET = "(observations, infos), each a dict by agent, as in PettingZoo's ParallelEnv"


def make(name: str, **settings: Any) -> AECEnv | ParallelEnv:
    """Create one of PettingZoo's own environments.

    Args:
      name: FAMILY/NAME, such as "classic/rps_v2".
      **settings: for the environment.

    Raises:
      pettingzoo.env_registry.exceptions.NameNotFound: the name is unknown.
    """
    try:
        return pettingzoo.make("parallel", name, **settings)
    except (NameNotFound, NamespaceNotFound):
        # Some have only an AEC form; its error lists all environments.
        return pettingzoo.make("aec", name, **settings)


def as_game(env: AECEnv | ParallelEnv) -> PettingZooGame:
    """Convert a PettingZoo environment to a `Game`.

    Args:
      env: the environment. PettingZoo converts an AECEnv with `aec_to_parallel` if its metadata
        has `is_parallelizable`, and otherwise with `turn_based_aec_to_parallel`, where all agents
        step and one of them acts.

    Raises:
      SpecError: the environment has no `possible_agents`, or one of its spaces cannot be sent.
    """
    if isinstance(env, AECEnv):
        is_parallelizable = env.metadata.get("is_parallelizable", False)
        env = aec_to_parallel(env) if is_parallelizable else turn_based_aec_to_parallel(env)
    return PettingZooGame(env)


class PettingZooGame(Game):
    """A game that runs a `pettingzoo.ParallelEnv` for the agents of several connections.

    Every agent needs a client. A client selects its agent with the join setting `agent`, or plays
    the first free agent. If the join setting `infos` is true, the agent's own observations are
    under `OBSERVATION` and the JSON of its info is under `EXTRAS`. A TimeStep has discount 0 if
    PettingZoo calls the agent terminated, and 1 if it is only truncated. If an agent resets its
    own sequence, the sequences of all agents are truncated.

    Args:
      env: the environment; `close` closes it.

    Attributes:
      properties: the properties listed in `description`.

    Raises:
      SpecError: the environment has no `possible_agents`, or one of its spaces cannot be sent.
    """

    def __init__(self, env: ParallelEnv):
        if not getattr(env, "possible_agents", None):
            raise SpecError(
                f"{type(env).__name__} has no possible_agents, so it is unknown which agents "
                "can join"
            )
        self._env = env
        text = describe(env)
        self._description = Description.read(text, list(env.possible_agents))
        self._action_readers = {
            agent: elements.reader(space, f"action of {agent!r}", as_sampled=True)
            for agent, space in self._description.action_spaces.items()
        }
        self._observation_writers = {
            agent: elements.writer(space, OBSERVATION)
            for agent, space in self._description.observation_spaces.items()
        }
        self._all = set(self._description.agents)
        self._names = {str(agent): agent for agent in self._description.agents}
        if len(self._names) < len(self._description.agents):
            raise SpecError(f"two agents have the same name: {self._description.agents}")
        # The agents that have joined, and whether each has requested infos.
        self._has_extras: dict[Hashable, bool] = {}
        self._seed: int | None = None
        self._options: Mapping[str, Any] | None = None
        # The agents in the running sequence, in the order of the possible agents, and the agents
        # that have left it.
        self._living: Collection[Hashable] = ()
        self._ended: set[Hashable] = set()
        self._timesteps: dict[Hashable, dm_env.TimeStep] = {}
        self._observed: dict[Hashable, Any] = {}
        self._extras: dict[Hashable, dict[str, Any]] = {}
        self.properties = Properties()
        self.properties.add(DESCRIPTION, lambda: text)
        if self._description.render_mode is not None:
            self.properties.add(FRAME, self._frame)
        if self._description.state_space is not None:
            self.properties.add(STATE, lambda: np.asarray(self._env.state()))

    @property
    def min_players(self) -> int:
        """The number of possible agents."""
        return len(self._description.agents)

    def join(self, settings: Mapping[str, Any]) -> Hashable:
        """Assign the agent specified by the settings, or the first free agent."""
        unknown = set(settings) - {"agent", "infos"}
        if unknown:
            raise ValueError(f"unknown join setting {min(unknown)!r}; valid settings: agent, infos")
        free = [name for name, agent in self._names.items() if agent not in self._has_extras]
        name = str(settings["agent"]) if "agent" in settings else free[0] if free else None
        if name not in free:
            named = "every agent is" if name is None else f"agent {name!r} is"
            problem = "taken" if name is None or name in self._names else "unknown"
            raise ValueError(f"{named} {problem}; free agents: {', '.join(free) or 'none'}")
        assert name is not None, "None is not free"
        agent = self._names[name]
        self._has_extras[agent] = bool(settings.get("infos", False))
        return agent

    def leave(self, player: Hashable) -> None:
        """Free the agent, so that another client can join as this agent."""
        del self._has_extras[player]

    def action_spec(self, player: Hashable) -> Any:
        """Return the spec of an agent's actions, or nested specs for a Tuple or Dict space."""
        return elements.to_spec(self._description.action_spaces[player], "action")

    def observation_spec(self, player: Hashable) -> Any:
        """Return the spec of an agent's observations."""
        space = self._description.observation_spaces[player]
        spec = elements.to_spec(space, OBSERVATION)
        if self._has_extras[player]:
            return {OBSERVATION: spec, EXTRAS: specs.StringArray((), name=EXTRAS)}
        return spec

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Set the `seed` and the `options` for the environment's next `reset`."""
        nested = nesting.unflatten_dict(settings, nesting.SEPARATOR)
        unknown = set(nested) - {"seed", "options"}
        if unknown:
            raise ValueError(
                f"unknown reset setting {min(unknown)!r}; valid settings: seed, options"
            )
        arguments = reset_arguments(nested)
        self._seed = arguments.get("seed", self._seed)
        self._options = arguments.get("options", self._options)

    def reset(self) -> None:
        """Begin an episode."""
        seed, self._seed = self._seed, None
        options, self._options = self._options, None
        returned = self._env.reset(seed=seed, options=None if options is None else dict(options))
        # Checked, because a dict of observations for two agents would unpack as well.
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            raise TypeError(
                f"reset of {class_name(self._env.unwrapped)} returned {described(returned)}; "
                f"expected {_RESET}"
            )
        observations, infos = returned
        self._living, self._ended = (), set()
        self._observed = {}
        self._take(observations, {}, {}, {}, infos, is_first=True)

    def step(self, actions: Mapping[Hashable, Any]) -> None:
        """Take a step, in which every living agent acts."""
        acting = self._living
        if any(agent not in actions for agent in acting):
            # A living agent without an action has reset its own sequence.
            self._living = ()
            self._timesteps = {agent: dm_env.truncation(0.0, None) for agent in acting}
            self._extras = {}
            return
        with in_request():
            played = {agent: self._action_readers[agent](actions[agent]) for agent in acting}
        try:
            observations, rewards, terminations, truncations, infos = self._env.step(played)
        except TypeError as error:
            explain_unpacking(error, self._env.unwrapped, "step", _STEP, "pettingzoo")
            raise
        except ValueError as error:
            explain_unpacking(error, self._env.unwrapped, "step", _STEP, "pettingzoo")
            raise environments_own(error) from error
        self._take(observations, rewards, terminations, truncations, infos, is_first=False)

    def timestep(self, player: Hashable) -> dm_env.TimeStep | None:
        timestep = self._timesteps.get(player)
        if timestep is None:
            return None
        observation = self._observed[player]
        if self._has_extras[player]:
            extras = self._extras.get(player)
            text = value_json.encode_extras(extras or {})
            observation = {OBSERVATION: observation, EXTRAS: text}
        return timestep._replace(observation=observation)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _take(
        self,
        observations: Mapping[Hashable, Any],
        rewards: Mapping[Hashable, float],
        terminations: Mapping[Hashable, bool],
        truncations: Mapping[Hashable, bool],
        infos: Mapping[Hashable, Any],
        *,
        is_first: bool,
    ) -> None:
        """Store the results of a step for all agents that were alive before or after the step."""
        present = set(self._env.agents)
        again = [agent for agent in self._env.agents if agent in self._ended]
        if again:
            raise RuntimeError(
                f"agent {again[0]!r} of {class_name(self._env.unwrapped)} reappeared after "
                "it was terminated or truncated; its client waits for the next reset, and a "
                "PettingZoo agent can return only then"
            )
        taking_part = [
            agent for agent in self._description.agents if agent in present or agent in self._living
        ]
        shared: dict[str, Any] = {}
        if len(taking_part) > len(self._living) and not (is_first and present == self._all):
            shared["agents"] = [str(agent) for agent in taking_part if agent in present]
        common = {key: info for key, info in infos.items() if key not in self._all}
        if common:
            shared["common"] = common
        self._timesteps, self._extras, living = {}, {}, []
        for agent in taking_part:
            if agent in observations:
                try:
                    write = self._observation_writers[agent]
                    self._observed[agent] = write(observations[agent])
                except SpecError as error:
                    raise environment_error(error, "space") from error
            elif agent not in self._observed:
                self._observed[agent] = self._stand_in(agent)
            terminated, truncated = terminations.get(agent), truncations.get(agent)
            reward = as_reward(self._env, rewards.get(agent, 0.0))
            if is_first:
                timestep = dm_env.restart(None)
            elif terminated:
                timestep = dm_env.termination(reward, None)
            elif truncated or agent not in present:
                timestep = dm_env.truncation(reward, None)
            else:
                timestep = dm_env.transition(reward, None)
            if timestep.last():
                self._ended.add(agent)
            else:
                living.append(agent)
            self._timesteps[agent] = timestep
            self._extras[agent] = dict(shared)
            if agent not in observations:
                self._extras[agent]["observed"] = False
            if not is_first and agent not in self._living:
                # A new agent's first step is FIRST, which has no place for a reward.
                self._extras[agent]["reward"] = reward
            if infos.get(agent):
                self._extras[agent]["info"] = infos[agent]
            if terminated and truncated:
                self._extras[agent]["truncated"] = True
        self._living = living

    def _stand_in(self, agent: Hashable) -> Any:
        """Return placeholder values for an agent that has not received any observation yet.

        Raises:
          RuntimeError: the agent's client receives no infos, which would mark the values as
            placeholders.
        """
        if not self._has_extras.get(agent):
            raise RuntimeError(f"the environment returned no observation for agent {agent!r}")
        spec = elements.to_spec(self._description.observation_spaces[agent], OBSERVATION)
        return tree.map_structure(lambda leaf: leaf.generate_value(), spec)

    def _frame(self) -> Any:
        return encoded_frame(self._env.render())
