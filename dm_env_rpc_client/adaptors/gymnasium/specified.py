"""The spec of a remote environment, which `gymnasium.make` and `gymnasium.make_vec` assign."""

from __future__ import annotations

import dataclasses

from gymnasium.envs.registration import EnvSpec

from dm_env_rpc_client.system.secrets import Keywords


class Specified:
    """The base class of remote environments, whose specs hide secrets."""

    _spec: EnvSpec | None = None
    _max_episode_steps: int | None = None

    @property
    def spec(self) -> EnvSpec | None:
        """The spec that Gymnasium assigned, with the time limit of the remote environment."""
        return self._spec

    @spec.setter
    def spec(self, spec: EnvSpec | None) -> None:
        if spec is not None:
            limit = spec.max_episode_steps
            spec = dataclasses.replace(
                spec,
                kwargs=Keywords(spec.kwargs),
                max_episode_steps=self._max_episode_steps if limit is None else limit,
            )
        self._spec = spec
