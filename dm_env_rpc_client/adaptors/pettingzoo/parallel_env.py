"""A PettingZoo ParallelEnv that steps the agents in a remote world."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dm_env
import gymnasium
from gymnasium import spaces
from pettingzoo import ParallelEnv

from dm_env_rpc_client import arguments
from dm_env_rpc_client.adaptors.gymnasium import value_json
from dm_env_rpc_client.adaptors.gymnasium.proxy import reset_settings
from dm_env_rpc_client.adaptors.pettingzoo.description import (
    DESCRIPTION,
    FRAME,
    STATE,
    Description,
)
from dm_env_rpc_client.adaptors.pettingzoo.seats import OwnSeat, Seat, Turn
from dm_env_rpc_client.environment.base_adaptor import NO_SETTINGS
from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
from dm_env_rpc_client.environment.made_again import MadeByArguments
from dm_env_rpc_client.environment.many.players import Players
from dm_env_rpc_client.environment.many.pool import NO_ACTION
from dm_env_rpc_client.environment.restarting import Restart, Supervision, restart_of
from dm_env_rpc_client.environment.server_location import Address
from dm_env_rpc_client.errors import (
    AgentsFailedError,
    ConnectionClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvRpcClientError,
    DmEnvRpcError,
    ProtocolError,
    SpecError,
)
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.system.secrets import hidden
from dm_env_rpc_client.tensors.memory_limits import DEFAULT

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dm_env_rpc_client.environment.make_options import PlayersKeywords

Agents = Sequence[Hashable] | Mapping[Hashable, Mapping[str, Any]]

_PROBE = "probe"
"""The name of the temporary agent that requests the list of agents."""

_LOSSES = (ConnectionClosedError, ConnectionLostError, DeadlineExceededError, ProtocolError)
"""The errors that leave a connection unusable. All other errors mean that the server refused a
request."""


class RemoteParallelEnv(MadeByArguments, ParallelEnv):
    """A ParallelEnv that steps the agents in one remote world together from one thread.

    Each agent has a stream on one shared connection. The Steps of all agents are sent before any
    answer is read.

    For a PettingZoo environment at a server built with this package, agents, spaces, observations,
    rewards, flags, infos, metadata, state and frames are the environment's own, and its `reset`
    receives `seed` and `options`. For any other world, the spaces are those of the agents' specs,
    as with `GymnasiumEnv`; `options` and `seed` are sent as the settings of a reset, and an agent
    is terminated if the server sends it TERMINATED and truncated if it sends INTERRUPTED.

    If one agent fails, for instance because its stream is lost, the streams of all agents end and
    the world is destroyed. With `restart`, a step that loses the server or a stream is truncated
    for all participating agents, with a copy of their last observations, reward 0 and the info
    `{"restarted": True}`. The next `reset` launches the server or connects to it again, and then
    creates and joins the world again. Until then, `render` and `state` raise
    ConnectionClosedError.

    Args:
      address: the address of the server, or a server to launch, as for `make`.
      agents: the agents to play; None for all agents of an environment that the server describes.
        Required for other worlds: names chosen by the caller, or a mapping from names to the
        settings with which each agent joins.
      create_world_settings: settings with which the world is created.
      join_world_settings: settings with which every agent joins.
      world_name: the world to join; None to create one. A step also waits for any other players in
        the world.
      render_mode: sent as the create setting `render_mode`. If the mode is "human" or the server
        does not support it, a warning is issued and `render` returns None.
      restart: how often to restart the world, with the same settings, if its server or a stream is
        lost; None or False for never, True for `Restart()`. Not allowed with `world_name`, since a
        world created by another client may no longer exist, or may continue without these agents.
      **make_kwargs: for `dm_env_rpc_client.make`, such as `request_timeout`. With
        `requested_observations`, every world is treated as "any other world".

    Attributes:
      possible_agents: the agents that may take part in an episode.
      agents: the agents that take part now.
      metadata: the metadata of the environment.
      render_mode: the render mode of the environment.
      notes: notes on spaces of other libraries, each replaced by the nearest Gymnasium space.
      world_name: the name of the world, for other players to join.

    Raises:
      SpecError: an argument has the wrong type or is out of range, and nothing was sent or
        started; an agent does not exist in the environment; the server does not list its agents
        and none are given; there is no space for a spec; or both `restart` and `world_name` are
        given.
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
        restart: Restart | bool | None = None,
        **make_kwargs: Unpack[PlayersKeywords],
    ):
        supervised = restart_of(restart)
        arguments.instance(
            "world_name", world_name, str, "the name of a world", none="None to create one"
        )
        arguments.text("render_mode", render_mode, none="None")
        if not isinstance(agents, Mapping) and (
            isinstance(agents, str) or not isinstance(agents, Collection | None)
        ):
            expected = "a sequence of agents, or a mapping from agents to settings"
            raise arguments.refused(
                "agents", expected, agents, "None for all agents in the environment"
            )
        for name, settings in (
            ("create_world_settings", create_world_settings),
            ("join_world_settings", join_world_settings),
        ):
            arguments.mapping(name, settings, expected="a mapping of names to values")
        if supervised is not None and world_name is not None:
            raise SpecError(
                "restart requires a world that this environment creates, but world_name "
                f"{world_name!r} is an existing world; pass either restart or world_name, not both"
            )
        creating = dict(create_world_settings)
        if render_mode not in (None, "human"):
            creating["render_mode"] = render_mode
        self.agents: list[Hashable] = []
        self.action_spaces: dict[Hashable, spaces.Space[Any]] = {}
        self.observation_spaces: dict[Hashable, spaces.Space[Any]] = {}
        self.render_mode: str | None = None
        self.notes: Sequence[str] = ()
        self._is_closed = False
        self._supervision = None if supervised is None else Supervision(supervised)
        self._latest: dict[Hashable, Any] = {}
        self._has_begun = False
        self._open = functools.partial(
            Players, address, world_name, creating, **hidden(make_kwargs)
        )
        may_be_own = "requested_observations" not in make_kwargs
        self._joining = (agents, dict(join_world_settings), may_be_own)
        self._enter()
        if render_mode not in (None, self.render_mode):
            warnings.warn(
                f"the server at {address} does not render in mode {render_mode!r}, so "
                f"render() returns None; its mode is {self.render_mode!r}, and 'human' would open "
                "a window there",
                stacklevel=2,
            )
            self.render_mode = None

    @property
    def restarts(self) -> int:
        """The number of restarts of the world; always 0 unless `restart` is enabled."""
        return 0 if self._supervision is None else self._supervision.count

    def observation_space(self, agent: Hashable) -> spaces.Space[Any]:
        """Return an agent's observation space, always as the same object."""
        return self.observation_spaces[agent]

    def action_space(self, agent: Hashable) -> spaces.Space[Any]:
        """Return an agent's action space, always as the same object."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[Hashable, Any], dict[Hashable, dict[str, Any]]]:
        """Begin an episode for all agents.

        Args:
          seed: passed to the environment's own `reset`.
          options: passed to the environment's own `reset`; see `adaptors.gymnasium.value_json` for
            the types that are preserved.

        Returns:
          The observation and the info of each agent that takes part.

        Raises:
          DmEnvRpcError: the environment raised an error, which the message quotes.
          AgentsFailedError: some agents failed, and this environment is closed.
          ConnectionClosedError: this environment was already closed.
          Otherwise, with `restart`, the error of the last attempt.
        """
        while True:
            self._restart()
            self._check_open()
            try:
                turn = self._begin(self._settings(seed, options))
            except DmEnvRpcClientError as error:
                self._lose(error)
            else:
                break
        # Copied, because the caller may change the returned dict.
        self._latest = dict(turn.observations)
        self._has_begun = True
        self.agents = turn.living(self.possible_agents)
        return turn.observations, turn.infos

    def _begin(self, settings: Mapping[str, Any]) -> Turn:
        try:
            self._players.end_sequence(settings)
            self.agents = []
            ready = [agent for agent in self.possible_agents if agent not in self._players.pending]
            self._players.send(dict.fromkeys(ready, NO_ACTION))
            # Agents that do not take part get no answer; the first answer lists those that do.
            first = self._players.finish([self._players.any_answered()])
            return self._turn(first, self.possible_agents)
        except BaseException as error:
            self._players.interrupted(error)
            raise

    def step(
        self, actions: Mapping[Hashable, Any]
    ) -> tuple[
        dict[Hashable, Any],
        dict[Hashable, float],
        dict[Hashable, bool],
        dict[Hashable, bool],
        dict[Hashable, dict[str, Any]],
    ]:
        """Take a step.

        Args:
          actions: for each of `agents`, an element of the agent's action space. Actions of agents
            that no longer take part are ignored.

        Returns:
          Observations, rewards, terminations, truncations and infos, each by agent. An agent that
          the environment did not observe has no observation. After the end of an episode, a step
          without actions returns five empty dicts.

        Raises:
          gymnasium.error.ResetNeeded: no agent takes part in an episode.
          SpecError: an action is missing or does not conform to its space; nothing was sent.
          DmEnvRpcError: the environment raised an error, which the message quotes.
          AgentsFailedError: some agents failed, and this environment is closed.
          ConnectionClosedError: this environment was already closed.
        """
        self._check_open()
        if not self.agents and not actions and self._has_begun:
            return {}, {}, {}, {}, {}  # As in PettingZoo's environments after the end.
        if not self.agents:
            raise gymnasium.error.ResetNeeded("no agent takes part in an episode: call reset()")
        unknown = [agent for agent in actions if agent not in self._seats]
        missing = [agent for agent in self.agents if agent not in actions]
        if unknown or missing:
            raise SpecError(
                f"expected an action for each of the agents {self.agents}; missing: {missing}, "
                f"unknown: {unknown}"
            )
        try:
            turn = self._take(actions)
        except DmEnvRpcClientError as error:
            self._lose(error)
            turn = Turn()
            for agent in self.agents:
                turn.lose(agent, self._latest)
        self._latest |= turn.observations
        self.agents = turn.living(self.possible_agents)
        return turn.observations, turn.rewards, turn.terminations, turn.truncations, turn.infos

    def _take(self, actions: Mapping[Hashable, Any]) -> Turn:
        wire = {agent: self._wire_action(agent, actions[agent]) for agent in self.agents}
        try:
            self._players.send(wire)
            timesteps = self._players.finish(self.agents)
            if self._supervision is not None:
                self._supervision.saw(next(iter(timesteps.values())))
            return self._turn(timesteps, ())
        except BaseException as error:
            self._players.interrupted(error)
            raise

    def render(self) -> Any:
        """Request and return the current frame, or return None if there is no render mode."""
        if self.render_mode is None:
            return None
        frame = self._read(FRAME)
        return value_json.decode(frame, FRAME) if isinstance(frame, str) else frame

    def state(self) -> Any:
        """Request and return the global state of the environment as an array.

        Raises:
          NotImplementedError: the environment has no `state_space`.
        """
        return self._read(STATE) if hasattr(self, "state_space") else super().state()

    def close(self) -> None:
        """Leave the world with all agents and destroy it; a second call does nothing."""
        self._is_closed = True
        self.agents = []
        self._players.close()

    def _enter(self) -> None:
        """Connect, create a world unless one is named, and join the world with all agents."""
        self._players = self._open()
        # The open recorder instead of its path, because the file exists when the world restarts.
        self._open = functools.partial(self._open, record=self._players.recorder)
        self._is_own = False
        self._seats: dict[Hashable, Seat] = {}
        try:
            self.world_name = self._players.world_name
            self._join(*self._joining)
        except BaseException:
            self._players.close()
            raise

    def _check_open(self) -> None:
        # A lost world has also been left, and `reset` restarts it.
        if self._is_closed or self._supervision is None or self._supervision.due is None:
            self._players.check_open()

    def _lose(self, error: DmEnvRpcClientError) -> None:
        """Mark the world as lost, or raise the error if the world cannot be restarted."""
        failures = error.failures.values() if isinstance(error, AgentsFailedError) else [error]
        is_lost = any(isinstance(failure, _LOSSES) for failure in failures)
        if self._supervision is None or self._is_closed or not is_lost:
            raise error
        self._players.close()
        self._supervision.lose(error, self._players.address, {})

    def _restart(self) -> None:
        """Restart the world if it is lost.

        Raises:
          SpecError: the agents or spaces of the world have changed.
          DmEnvRpcClientError: all attempts have failed; this is the error of the last attempt.
        """
        supervision = self._supervision
        while supervision is not None and supervision.due is not None and not self._is_closed:
            time.sleep(supervision.next_pause())
            before = self.action_spaces, self.observation_spaces, self.render_mode
            try:
                self._enter()
            except (SpecError, ConnectionClosedError):
                raise
            except DmEnvRpcClientError as error:
                supervision.failed(error)
                continue
            now = self.action_spaces, self.observation_spaces
            # Callers may hold the former spaces, so these objects stay.
            self.action_spaces, self.observation_spaces, self.render_mode = before
            if now != before[:2]:
                self._players.close()
                raise SpecError(
                    f"the world has different agents or spaces after its restart: {now}; "
                    f"before the restart: {before[:2]}"
                )
            supervision.succeeded(self._players.address)

    def _join(
        self, agents: Agents | None, join_world_settings: Mapping[str, Any], may_be_own: bool
    ) -> None:
        if agents is not None and not agents:
            raise SpecError("expected at least one agent, got none")
        named = agents if isinstance(agents, Mapping) else dict.fromkeys(agents or (), NO_SETTINGS)
        settings = {agent: {**join_world_settings, **own} for agent, own in named.items()}
        # The first agent requests the list of agents, since only joined agents can.
        first = next(iter(settings), _PROBE)
        env = self._players.join(first, settings.get(first, join_world_settings))
        description = _describe(env) if may_be_own else None
        if description is None:
            if agents is None:
                raise SpecError(
                    f"the server at {env.connection.address} does not list its agents; "
                    "specify them with agents=..."
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
        """Join the world as every agent except the first, which has already joined."""
        first, *others = settings
        if not self._players.environments[first].connection.is_usable:
            # Some servers end a stream on an unknown extension.
            self._players.leave(first)
            others = list(settings)
        for agent in others:
            self._players.join(agent, settings[agent])
        environments = self._players.environments
        self._seats = {agent: Seat(environments[agent]) for agent in settings}

    def _join_own(
        self,
        description: Description,
        settings: Mapping[Hashable, Mapping[str, Any]],
        join_world_settings: Mapping[str, Any],
    ) -> None:
        """Join a PettingZoo environment."""
        known = {str(agent): agent for agent in description.agents}
        unknown = [agent for agent in settings if str(agent) not in known]
        if unknown:
            raise SpecError(f"unknown agents {unknown}; existing agents: {', '.join(known)}")
        own = {known[str(agent)]: each for agent, each in settings.items()}
        for agent, each in (own or dict.fromkeys(description.agents, join_world_settings)).items():
            env = self._players.join(agent, {"agent": str(agent), "infos": True, **each})
            self._seats[agent] = OwnSeat(
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

    def _turn(
        self, timesteps: dict[Hashable, dm_env.TimeStep], unless_told: Collection[Hashable]
    ) -> Turn:
        """Wait for the pending agents in the server's list, or in `unless_told` without one."""
        present = unless_told
        for agent, timestep in timesteps.items():
            told = self._seats[agent].extras(timestep).present
            if told is not None:
                present = [each for each in self.possible_agents if str(each) in told]
        pending = self._players.pending
        timesteps |= self._players.finish([agent for agent in present if agent in pending])
        turn = Turn()
        for agent in self.possible_agents:
            if agent in timesteps:
                turn.add(agent, self._seats[agent], timesteps[agent])
        return turn

    def _read(self, key: str) -> Any:
        """Read a property of the world on the stream of an agent that has no pending step."""
        self._players.check_open()
        for agent, env in self._players.environments.items():
            if agent not in self._players.pending:
                return PropertiesExtension(env.connection).read(key)
        raise SpecError(f"{key!r} cannot be read while all agents wait to take part in an episode")


def _describe(env: DmEnvAdaptor) -> Description | None:
    """Request the description of a PettingZoo environment, or return None for any other world."""
    try:
        text = PropertiesExtension(env.connection).read(DESCRIPTION)
    except (DmEnvRpcError, ConnectionLostError):
        return None
    if not isinstance(text, str):
        return None
    return Description.read(text, limits=env.connection.limits or DEFAULT)
