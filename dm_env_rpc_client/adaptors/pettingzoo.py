"""The agents of a remote world as a ParallelEnv of PettingZoo. Needs the extra `pettingzoo`.

env = RemoteParallelEnv("localhost:50051")
observations, infos = env.reset(seed=1)
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import dm_env
import gymnasium
from gymnasium import spaces
from pettingzoo import ParallelEnv

from dm_env_rpc_client.adaptors.gymnasium import check_reward_spec, info_of, single_leaf
from dm_env_rpc_client.adaptors.gymnasium_proxy import (
    observation_of,
    reset_settings,
    wire_action,
)
from dm_env_rpc_client.adaptors.gymnasium_spaces import from_space, spec_to_space, to_space
from dm_env_rpc_client.bridges import gymnasium_values
from dm_env_rpc_client.bridges.pettingzoo_description import (
    DESCRIPTION,
    EXTRAS,
    FRAME,
    STATE,
    Description,
)
from dm_env_rpc_client.environment.base_adaptor import NO_SETTINGS
from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
from dm_env_rpc_client.environment.players import Players
from dm_env_rpc_client.environment.pool import NO_ACTION
from dm_env_rpc_client.environment.sites import Address
from dm_env_rpc_client.errors import ConnectionLostError, DmEnvRpcError, ProtocolError, SpecError
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.protocol.lifecycle import State

__all__ = ["RemoteParallelEnv"]

Agents = Sequence[Hashable] | Mapping[Hashable, Mapping[str, Any]]

_PROBE = "probe"
"""The agent that asks the server which agents there are."""


class RemoteParallelEnv(ParallelEnv):
    """Steps the agents of one remote world together, from one thread.

    Each agent is a stream of one connection. All their Steps are sent before any answer is read.

    Of a PettingZoo environment at a server of this package, the agents, spaces, observations,
    rewards, flags, infos, metadata, state and frames are its own, and `seed` and `options` go to
    its own `reset`. Of any other world the spaces are those of the agents' specs, as with
    `GymnasiumEnv`; the settings of a reset are `options` and the `seed`, and an agent is terminated
    if the server sends it TERMINATED and truncated if it sends INTERRUPTED.

    If one agent fails, for instance because its stream is lost, the streams of all agents are ended
    and the world is destroyed.

    Args:
      address: the address of the server, or a server to launch, as for `make`.
      agents: the agents to play; None for all of the environment, if the server says which there
        are. Of other worlds it has to be given: the names that the agents have on this side, or a
        mapping from these to the settings with which each joins.
      create_world_settings: settings with which the world is created.
      join_world_settings: settings with which every agent joins.
      world_name: the world to join; None to create one. If others play in it too, a step waits for
        theirs.
      render_mode: sent as the create setting `render_mode`. A mode that the server does not have,
        or "human", is a warning, and `render` returns None.
      **make_kwargs: for `dm_env_rpc_client.make`, such as `request_timeout`. With
        `requested_observations` every world is treated as "any other".

    Attributes:
      possible_agents: the agents that may take part in an episode.
      agents: those that take part now.
      metadata: of the environment.
      render_mode: the mode that it renders in.
      notes: which of its spaces are replaced by others, because they are not Gymnasium's own.
      world_name: the name of the world, for other players to join.

    Raises:
      SpecError: an agent is not one of the environment; the server does not say which agents there
        are; or there is no space for a spec.
      Otherwise as `dm_env_rpc_client.make`. No world is left on the server.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # as in PettingZoo

    def __init__(
        self,
        address: Address,
        agents: Agents | None = None,
        create_world_settings: Mapping[str, Any] = NO_SETTINGS,
        join_world_settings: Mapping[str, Any] = NO_SETTINGS,
        *,
        world_name: str | None = None,
        render_mode: str | None = None,
        **make_kwargs: Any,
    ):
        creating = dict(create_world_settings)
        if render_mode not in (None, "human"):
            creating["render_mode"] = render_mode
        self.agents: list[Hashable] = []
        self.render_mode: str | None = None
        self.notes: Sequence[str] = ()
        self._is_own = False
        self._seats: dict[Hashable, _Seat] = {}
        self._players = Players(address, world_name, creating, **make_kwargs)
        try:
            self.world_name = self._players.world_name
            may_be_own = "requested_observations" not in make_kwargs
            self._join(agents, dict(join_world_settings), may_be_own)
        except BaseException:
            self._players.close()
            raise
        if render_mode not in (None, self.render_mode):
            warnings.warn(
                f"the server at {address} does not render in mode {render_mode!r}, so that "
                f"render() returns None; its mode is {self.render_mode!r}, and 'human' would open "
                "a window there",
                stacklevel=2,
            )
            self.render_mode = None

    def observation_space(self, agent: Hashable) -> spaces.Space[Any]:
        """Returns the space of an agent's observations; always the same object."""
        return self.observation_spaces[agent]

    def action_space(self, agent: Hashable) -> spaces.Space[Any]:
        """Returns the space of an agent's actions; always the same object."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[Hashable, Any], dict[Hashable, dict[str, Any]]]:
        """Begins an episode for all agents.

        Args:
          seed: for the environment's own `reset`.
          options: the same; see `bridges.gymnasium_values` for what travels as it is.

        Returns:
          The observation and the info of each agent that takes part.

        Raises:
          DmEnvRpcError: the environment raised an error, whose text it has.
          AgentsFailedError: some agents failed, and this environment is closed.
          ConnectionClosedError: it was closed before.
        """
        self._players.check_open()
        self._players.end_sequence(self._settings(seed, options))
        self.agents = []
        ready = [agent for agent in self.possible_agents if agent not in self._players.pending]
        self._players.send(dict.fromkeys(ready, NO_ACTION))
        # Agents that do not take part are not answered; those that are say who does.
        first = self._players.finish([self._players.any_answered()])
        turn = self._turn({**first, **self._finish_newcomers(first, self.possible_agents)})
        self.agents = turn.living(self.possible_agents)
        return turn.observations, turn.infos

    def step(
        self, actions: Mapping[Hashable, Any]
    ) -> tuple[
        dict[Hashable, Any],
        dict[Hashable, float],
        dict[Hashable, bool],
        dict[Hashable, bool],
        dict[Hashable, dict[str, Any]],
    ]:
        """Takes a step.

        Args:
          actions: for each of `agents` an element of its action space. Those of agents that take
            no part any more are ignored.

        Returns:
          Observations, rewards, terminations, truncations and infos, each by agent.

        Raises:
          gymnasium.error.ResetNeeded: no agent takes part in an episode.
          SpecError: an action is missing or does not conform; nothing was sent.
          DmEnvRpcError: the environment raised an error, whose text it has.
          AgentsFailedError: some agents failed, and this environment is closed.
          ConnectionClosedError: it was closed before.
        """
        self._players.check_open()
        if not self.agents:
            raise gymnasium.error.ResetNeeded("no agent takes part in an episode: call reset()")
        unknown = [agent for agent in actions if agent not in self._seats]
        missing = [agent for agent in self.agents if agent not in actions]
        if unknown or missing:
            raise SpecError(
                f"expected an action for each of the agents {self.agents}; missing: {missing}, "
                f"unknown: {unknown}"
            )
        self._players.send(
            {agent: self._wire_action(agent, actions[agent]) for agent in self.agents}
        )
        timesteps = self._players.finish(self.agents)
        turn = self._turn({**timesteps, **self._finish_newcomers(timesteps, ())})
        self.agents = turn.living(self.possible_agents)
        return turn.observations, turn.rewards, turn.terminations, turn.truncations, turn.infos

    def render(self) -> Any:
        """Returns what the environment renders now, which takes a request; None without a mode."""
        if self.render_mode is None:
            return None
        frame = self._read(FRAME)
        return gymnasium_values.decode(frame, FRAME) if isinstance(frame, str) else frame

    def state(self) -> Any:
        """Returns the global state of the environment, an array, which takes a request.

        Raises:
          NotImplementedError: the environment has no `state_space`.
        """
        return self._read(STATE) if hasattr(self, "state_space") else super().state()

    def close(self) -> None:
        """Leaves the world with all agents and destroys it; a second call does nothing."""
        self.agents = []
        self._players.close()

    def _join(
        self, agents: Agents | None, join_world_settings: Mapping[str, Any], may_be_own: bool
    ) -> None:
        if agents is not None and not agents:
            raise SpecError("expected at least one agent, got none")
        named = agents if isinstance(agents, Mapping) else dict.fromkeys(agents or (), NO_SETTINGS)
        settings = {agent: {**join_world_settings, **own} for agent, own in named.items()}
        # The first agent asks who else there is, since only those that have joined may.
        first = next(iter(settings), _PROBE)
        env = self._players.join(first, settings.get(first, join_world_settings))
        description = _describe(env) if may_be_own else None
        if description is None:
            if agents is None:
                raise SpecError(
                    f"the server at {env.connection.address} does not say which agents there are; "
                    "name them with agents="
                )
            self._join_any(settings)
        else:
            self._players.leave(first)
            self._join_own(description, settings, join_world_settings)
        self.possible_agents = list(self._seats)
        self.action_spaces = {agent: seat.action_space for agent, seat in self._seats.items()}
        self.observation_spaces = {
            agent: seat.observation_space for agent, seat in self._seats.items()
        }

    def _join_any(self, settings: Mapping[Hashable, Mapping[str, Any]]) -> None:
        """Joins with all agents but the first, which has joined."""
        first, *others = settings
        if not self._players.environments[first].connection.is_usable:
            # Some servers end a stream with an extension that they do not know.
            self._players.leave(first)
            others = list(settings)
        for agent in others:
            self._players.join(agent, settings[agent])
        environments = self._players.environments
        self._seats = {agent: _Seat(environments[agent]) for agent in settings}

    def _join_own(
        self,
        description: Description,
        settings: Mapping[Hashable, Mapping[str, Any]],
        join_world_settings: Mapping[str, Any],
    ) -> None:
        """Joins a PettingZoo environment."""
        known = {str(agent): agent for agent in description.agents}
        unknown = [agent for agent in settings if str(agent) not in known]
        if unknown:
            raise SpecError(f"there are no agents {unknown}; agents: {', '.join(known)}")
        own = {known[str(agent)]: each for agent, each in settings.items()}
        for agent, each in (own or dict.fromkeys(description.agents, join_world_settings)).items():
            env = self._players.join(agent, {"agent": str(agent), "infos": True, **each})
            self._seats[agent] = _OwnSeat(
                env, description.action_spaces[agent], description.observation_spaces[agent]
            )
        self._is_own = True
        self.metadata = description.metadata
        self.render_mode = description.render_mode
        self.notes = description.notes
        if description.state_space is not None:
            self.state_space = description.state_space

    def _settings(self, seed: int | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
        if self._is_own:
            return reset_settings(seed, options)
        return {**({} if seed is None else {"seed": int(seed)}), **(options or {})}

    def _wire_action(self, agent: Hashable, action: Any) -> Any:
        try:
            return self._seats[agent].wire_action(action)
        except SpecError as error:
            raise SpecError(f"agent {agent!r}: {error}") from error

    def _finish_newcomers(
        self, timesteps: Mapping[Hashable, dm_env.TimeStep], unless_told: Collection[Hashable]
    ) -> dict[Hashable, dm_env.TimeStep]:
        """Waits for those who begin to take part, or `unless_told`, and were not answered yet."""
        present = unless_told
        for agent, timestep in timesteps.items():
            told = self._seats[agent].extras(timestep).present
            if told is not None:
                present = [each for each in self.possible_agents if str(each) in told]
        pending = self._players.pending
        return self._players.finish([agent for agent in present if agent in pending])

    def _turn(self, timesteps: Mapping[Hashable, dm_env.TimeStep]) -> _Turn:
        turn = _Turn()
        for agent in self.possible_agents:
            if agent in timesteps:
                turn.add(agent, self._seats[agent], timesteps[agent])
        return turn

    def _read(self, key: str) -> Any:
        """Reads a property of the world over the stream of an agent that waits for nothing."""
        self._players.check_open()
        for agent, env in self._players.environments.items():
            if agent not in self._players.pending:
                return PropertiesExtension(env.connection).read(key)
        raise SpecError(f"all agents wait to take part in an episode; {key!r} cannot be read")


class _Extras(NamedTuple):
    """What comes with an agent's observation.

    Attributes:
      info: the info of the agent.
      is_truncated: whether an agent that was terminated was truncated, too.
      present: the names of all agents that take part now, if others than before and survivors.
      common: infos of no agent, by key.
    """

    info: Mapping[str, Any] = NO_SETTINGS
    is_truncated: bool = False
    present: Sequence[str] | None = None
    common: Mapping[str, Any] = NO_SETTINGS


class _Seat:
    """An agent of any world, with the spaces of its specs."""

    def __init__(self, env: DmEnvAdaptor):
        check_reward_spec(env.reward_spec())
        self.env = env
        self._action_path, self._action_leaf = single_leaf(env.action_spec())
        self._observation_path, observation_leaf = single_leaf(env.observation_spec())
        self.action_space = spec_to_space(self._action_leaf, "action")
        self.observation_space = spec_to_space(observation_leaf, "observation")

    def wire_action(self, action: Any) -> Any:
        """Returns an element of the action space as the action of the connection."""
        value = from_space(self._action_leaf, action, "action")
        for key in reversed(self._action_path):
            value = {key: value}
        return value

    def observation(self, timestep: dm_env.TimeStep) -> Any:
        """Returns the element of the observation space."""
        value = timestep.observation
        for key in self._observation_path:
            value = value[key]
        return to_space(self.observation_space, value)

    def extras(self, timestep: dm_env.TimeStep) -> _Extras:
        """Returns what came with the observation."""
        return _Extras(info_of(timestep))


class _OwnSeat(_Seat):
    """An agent of a PettingZoo environment."""

    def __init__(
        self,
        env: DmEnvAdaptor,
        action_space: spaces.Space[Any],
        observation_space: spaces.Space[Any],
    ):
        self.env = env
        self.action_space, self.observation_space = action_space, observation_space

    def wire_action(self, action: Any) -> Any:
        return wire_action(self.action_space, action)

    def observation(self, timestep: dm_env.TimeStep) -> Any:
        return observation_of(self.observation_space, timestep.observation)

    def extras(self, timestep: dm_env.TimeStep) -> _Extras:
        text = str(timestep.observation[EXTRAS])
        if not text:
            return _Extras({})
        where = f"observation {EXTRAS!r}"
        value = gymnasium_values.decode(text, where)
        try:
            present = value.get("agents")
            return _Extras(
                dict(value.get("info", {})),
                value.get("truncated") is True,
                None if present is None else list(map(str, present)),
                dict(value.get("common", {})),
            )
        except (AttributeError, TypeError, ValueError) as error:
            raise ProtocolError(f"{where}: {type(error).__name__}: {error}") from error


class _Turn:
    """What one step or reset returns, by agent."""

    def __init__(self) -> None:
        self.observations: dict[Hashable, Any] = {}
        self.rewards: dict[Hashable, float] = {}
        self.terminations: dict[Hashable, bool] = {}
        self.truncations: dict[Hashable, bool] = {}
        self.infos: dict[Hashable, dict[str, Any]] = {}

    def add(self, agent: Hashable, seat: _Seat, timestep: dm_env.TimeStep) -> None:
        """Adds what an agent has received."""
        extras = seat.extras(timestep)
        is_terminated = timestep.last() and seat.env.state is State.TERMINATED
        self.observations[agent] = seat.observation(timestep)
        # A server may begin a sequence at any time, and such a step has no reward.
        self.rewards[agent] = 0.0 if timestep.reward is None else float(timestep.reward)
        self.terminations[agent] = is_terminated
        self.truncations[agent] = extras.is_truncated or (timestep.last() and not is_terminated)
        self.infos.update(extras.common)
        self.infos[agent] = dict(extras.info)

    def living(self, agents: Sequence[Hashable]) -> list[Hashable]:
        """Those of some agents that go on."""
        return [
            agent
            for agent in agents
            if agent in self.observations
            and not (self.terminations[agent] or self.truncations[agent])
        ]


def _describe(env: DmEnvAdaptor) -> Description | None:
    """Asks a server about the environment in a world; None if it is not one of PettingZoo."""
    try:
        text = PropertiesExtension(env.connection).read(DESCRIPTION)
    except (DmEnvRpcError, ConnectionLostError):
        return None
    return Description.read(text) if isinstance(text, str) else None
