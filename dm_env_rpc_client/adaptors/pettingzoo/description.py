"""A server's description of a PettingZoo environment."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from gymnasium import spaces

from dm_env_rpc_client.adaptors.gymnasium.info_observation import OF_AGENTS
from dm_env_rpc_client.adaptors.gymnasium.space_json import from_json, to_json
from dm_env_rpc_client.adaptors.gymnasium.spaces import Room
from dm_env_rpc_client.adaptors.gymnasium.value_json import (
    VERSION,
    decode_description,
    from_jsonable,
    to_jsonable,
)
from dm_env_rpc_client.errors import ProtocolError
from dm_env_rpc_client.tensors import bounded_parsing
from dm_env_rpc_client.tensors.memory_limits import Limits

DESCRIPTION = "pettingzoo"
"""The key of the property that contains the agents, their spaces and the metadata as JSON."""

FRAME = "pettingzoo.frame"
"""The key of the property that contains the current frame: an array, or another value as JSON."""

STATE = "pettingzoo.state"
"""The key of the property that contains the global state, if there is a `state_space`."""

EXTRAS = OF_AGENTS
"""The name of the observation that contains the info and other values without a counterpart in
dm_env."""


class Description(NamedTuple):
    """A PettingZoo environment.

    Attributes:
      agents: the possible agents of the environment.
      action_spaces: the action space of each agent.
      observation_spaces: the observation space of each agent.
      metadata: the metadata of the environment.
      render_mode: the render mode of the environment.
      state_space: the space of the environment's global state; None if there is no global state.
      notes: notes on spaces of other libraries, each replaced by the nearest Gymnasium space.
    """

    agents: Sequence[Hashable]
    action_spaces: Mapping[Hashable, spaces.Space[Any]]
    observation_spaces: Mapping[Hashable, spaces.Space[Any]]
    metadata: dict[str, Any]
    render_mode: str | None
    state_space: spaces.Space[Any] | None
    notes: Sequence[str]

    @classmethod
    def read(
        cls, text: str, agents: Sequence[Hashable] = (), limits: Limits | None = None
    ) -> Description:
        """Decode a description that `describe` returned.

        Args:
          text: the JSON text from a server.
          agents: the agents, if they are known.
          limits: the limits of the messages that carry the elements; None for an environment in
            this process.

        Raises:
          ProtocolError: the text is invalid.
        """
        where = f"property {DESCRIPTION!r}"
        value = decode_description(text, where)
        room = Room(limits)
        try:
            items = value["agents"]
            agents = agents or [from_jsonable(item["agent"], where) for item in items]
            each = dict(zip(agents, items, strict=True))
            state_space = value["state_space"]
            actions, observations = (
                {agent: from_json(item[name], where, room) for agent, item in each.items()}
                for name in ("action_space", "observation_space")
            )
            return cls(
                list(each),
                actions,
                observations,
                dict(from_jsonable(value["metadata"], where)),
                value["render_mode"],
                None if state_space is None else from_json(state_space, where, room),
                [str(note) for note in value["notes"]],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"{where}: {type(error).__name__}: {error}") from error


def describe(env: Any) -> str:
    """Return a JSON string that describes a `pettingzoo.ParallelEnv`.

    Args:
      env: the environment.

    Raises:
      SpecError: no Gymnasium space can replace one of the spaces.
    """
    notes: list[str] = []
    state_space = getattr(env, "state_space", None)
    description = {
        "version": VERSION,
        "agents": [
            {
                "agent": to_jsonable(agent, where="agent"),
                "action_space": to_json(env.action_space(agent), f"{agent}: action_space", notes),
                "observation_space": to_json(
                    env.observation_space(agent), f"{agent}: observation_space", notes
                ),
            }
            for agent in env.possible_agents
        ],
        "metadata": to_jsonable(dict(getattr(env, "metadata", {})), where="metadata"),
        "render_mode": getattr(env, "render_mode", None),
        "state_space": None if state_space is None else to_json(state_space, "state_space", notes),
        "notes": notes,
    }
    return bounded_parsing.encode(description, DESCRIPTION).decode("ascii")
