"""A Stable-Baselines3 VecEnv that runs remote environments; it requires the `sb3` extra.

from stable_baselines3 import PPO
envs = RemoteSb3VecEnv("localhost:50051", 8)
PPO("MlpPolicy", envs).learn(100_000)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dm_env_rpc_client.adaptors.places import pointing
from dm_env_rpc_client.environment.base_adaptor import NO_SETTINGS
from dm_env_rpc_client.environment.made_again import MadeByArguments
from dm_env_rpc_client.environment.many.row_settings import Settings
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.extras import importing

with importing("sb3", "RemoteSb3VecEnv needs"):
    import gymnasium
    from gymnasium.vector import AutoresetMode
    from stable_baselines3.common.vec_env import VecEnv

    from dm_env_rpc_client.adaptors.gymnasium.calls.remote import (
        call_rows,
        may_be_called,
        set_rows,
    )
    from dm_env_rpc_client.adaptors.gymnasium.dict_vector_env import DictVectorEnv

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dm_env_rpc_client.environment.make_options import VectorKeywords

__all__ = ["RemoteSb3VecEnv"]

if not TYPE_CHECKING:  # It would make type checkers accept every name.
    __getattr__ = pointing(__name__)


class RemoteSb3VecEnv(MadeByArguments, VecEnv):
    """N remote environments stepped together from one thread, for Stable-Baselines3 agents.

    As with every VecEnv, the step that ends an episode begins the next episode. The last
    observation of the ended episode is `info["terminal_observation"]`, and
    `info["TimeLimit.truncated"]` is True if it was truncated and not terminated. The infos of
    resets are `reset_infos`. Infos keep the types that each environment returned (see
    `adaptors.gymnasium.value_json`). Infos that a vector environment at the server has stacked are
    split by row.

    Args:
      address: as for `RemoteVectorEnv`.
      num_envs: as for `RemoteVectorEnv`.
      create_world_settings: as for `RemoteVectorEnv`.
      join_world_settings: as for `RemoteVectorEnv`.
      **kwargs: for `RemoteVectorEnv`, such as `render_mode`.

    Raises:
      As `RemoteVectorEnv`.
    """

    def __init__(
        self,
        address: str | Sequence[str],
        num_envs: int | None = None,
        create_world_settings: Settings = NO_SETTINGS,
        join_world_settings: Settings = NO_SETTINGS,
        **kwargs: Unpack[VectorKeywords],
    ):
        self._envs = DictVectorEnv(
            address,
            num_envs,
            create_world_settings,
            join_world_settings,
            autoreset_mode=AutoresetMode.SAME_STEP,
            **kwargs,
        )
        self._actions: Any = None
        self.metadata = self._envs.metadata
        super().__init__(
            self._envs.num_envs,
            self._envs.single_observation_space,
            self._envs.single_action_space,
        )

    def __repr__(self) -> str:
        return self._envs._described(type(self).__name__)

    def reset(self) -> Any:
        """Begin an episode in every environment, using the values set by `seed` and `set_options`.

        Returns:
          The observations [N, ...].

        Raises:
          SpecError: the environments have different options. Otherwise as `RemoteVectorEnv.reset`.
        """
        options = self._options[0]
        if any(each != options for each in self._options):
            raise SpecError("all environments in a batch must be reset with the same options")
        observations = self._envs.reset_each(self._seeds, options or None, self.reset_infos)
        self._reset_seeds()
        self._reset_options()
        return observations

    def step_async(self, actions: npt.NDArray[Any]) -> None:
        """Store the actions [N, ...] for the next call to `step_wait`, which sends them."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, npt.NDArray[Any], npt.NDArray[Any], list[dict[str, Any]]]:
        """Step every environment and wait for all of them.

        Returns:
          Observations [N, ...], rewards float32 [N], ended episodes bool [N], and infos.

        Raises:
          As `RemoteVectorEnv.step`.
        """
        return self._envs.step_each(self._actions, self.reset_infos)

    def close(self) -> None:
        """Close the environments; a second call does nothing."""
        self._envs.close()

    def get_images(self) -> Sequence[npt.NDArray[np.uint8] | None]:
        """Return the current frames rendered by the Gymnasium environments on the servers."""
        return self._envs.render() or [None] * self.num_envs

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of each selected environment.

        Args:
          attr_name: the name of an attribute of `RemoteVectorEnv`; any other name is treated as in
            `RemoteVectorEnv.get_attr`.
          indices: one index or several; None for all.

        Raises:
          As `RemoteVectorEnv.call`.
        """
        rows = self._get_indices(indices)
        if hasattr(self._envs, attr_name):
            return [getattr(self._envs, attr_name) for _ in rows]
        return call_rows(self._envs._worlds, attr_name, list(rows), (), {})

    def has_attr(self, attr_name: str) -> bool:
        """Check, without calling any method, whether `get_attr` can return an attribute."""
        return hasattr(self._envs, attr_name) or may_be_called(self._envs._worlds, attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute of every selected environment to the same value.

        Args:
          attr_name: the name of the attribute.
          value: the value, which must be data.
          indices: one index or several; None for all.

        Raises:
          As `RemoteVectorEnv.set_attr`.
        """
        rows = list(self._get_indices(indices))
        set_rows(self._envs._worlds, attr_name, rows, [value] * len(rows))

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of each selected environment.

        Args:
          method_name: the name of the method.
          *method_args: positional arguments, which must be data.
          indices: one index or several; None for all.
          **method_kwargs: keyword arguments, which must be data.

        Raises:
          As `RemoteVectorEnv.call`.
        """
        rows = list(self._get_indices(indices))
        return call_rows(self._envs._worlds, method_name, rows, method_args, method_kwargs)

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: Any = None
    ) -> list[bool]:
        """Return False for each selected environment, because none of them has local wrappers."""
        selected: Iterable[int] = self._get_indices(indices)
        return [False for _ in selected]
