"""An environment that shows one row of a batched world, for display and manual play."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dm_env
import numpy as np
import tree
from dm_env import specs
from google.rpc import code_pb2, status_pb2

from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
from dm_env_rpc_client.errors import DmEnvRpcError, SpecError
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.tensors.columns import row_tensor_spec
from dm_env_rpc_client.tensors.specs import dm_env_spec_to_tensor_spec, tensor_spec_to_dm_env_spec


def num_envs_of(env: dm_env.Environment) -> int | None:
    """Return the number of rows of a batched world joined by `make`, or None for other worlds."""
    if not isinstance(env, DmEnvAdaptor):
        return None
    # Rows cannot be shown without the types of their steps.
    return env._num_rows if batches.STEP_TYPE in env._observation_specs else None


class OneRow(dm_env.Environment):
    """An environment that shows one row of a batched world; all rows take the same actions.

    Args:
      env: the world, as returned by `make`; it is not closed with this environment.
      row: the number of the row, from 0.

    Attributes:
      num_envs: the number of rows.

    Raises:
      SpecError: the world is not batched, or has no such row.
    """

    def __init__(self, env: DmEnvAdaptor, row: int = 0):
        count = num_envs_of(env)
        if count is None:
            raise SpecError(f"world {env.world_name!r} is not batched: it has no rows")
        self._env = env
        self.num_envs = count
        self._last: dm_env.TimeStep | None = None
        self.row = row

    @property
    def row(self) -> int:
        """The index of the displayed row. Setting an invalid index raises SpecError."""
        return self._row

    @row.setter
    def row(self, row: int) -> None:
        if not 0 <= row < self.num_envs:
            raise SpecError(f"there is no row {row}: the batch has rows 0 to {self.num_envs - 1}")
        self._row = row

    def shown(self) -> dm_env.TimeStep | None:
        """Return the last TimeStep of the row, or None before the first TimeStep."""
        return None if self._last is None else self._timestep(self._last)

    def reset(self, settings: Mapping[str, Any] = {}) -> dm_env.TimeStep:
        """Begin a sequence in the row, or in all rows if the row cannot begin one alone.

        Args:
          settings: the settings of the Reset, for all rows.

        Returns:
          The TimeStep of the row. Errors are those of `DmEnvAdaptor.reset`.
        """
        if self._last is None or settings:
            self._last = self._env.reset(dict(settings))
            return self._checked()
        mask = np.arange(self.num_envs) == self.row
        try:
            self._last = self._env.reset({batches.RESET_MASK: mask})
        except DmEnvRpcError:
            # A vector environment may take no mask.
            self._last = self._env.reset({})
        return self._checked()

    def step(self, action: Any) -> dm_env.TimeStep:
        """Step all rows with one action, or begin a sequence in the row if none is running.

        Args:
          action: as in `action_spec`; by flat or nested names.

        Returns:
          The TimeStep of the row.

        Raises:
          DmEnvRpcError: the row has raised an error. Otherwise as `DmEnvAdaptor.step`.
        """
        shown = self.shown()
        if shown is None or shown.last():
            return self.reset()
        self._last = self._env.step(tree.map_structure(self._repeated, action))
        return self._checked()

    def action_spec(self) -> Any:
        """Return the specs of the row's actions."""
        return self._row_specs(self._env.action_spec())

    def observation_spec(self) -> Any:
        """Return the specs of the row's observations."""
        return self._row_specs(self._env.observation_spec())

    def reward_spec(self) -> Any:
        """Return the spec of the row's reward."""
        return self._row_spec(self._env.reward_spec())

    def discount_spec(self) -> Any:
        """Return the spec of the row's discount."""
        return self._row_spec(self._env.discount_spec())

    def _row_specs(self, structure: Mapping[str, Any]) -> dict[str, Any]:
        # Without observations of the whole batch, such as infos.
        return {
            name: self._row_specs(part) if isinstance(part, Mapping) else self._row_spec(part)
            for name, part in structure.items()
            if name not in (*batches.OF_BATCH, batches.STEP_MASK)
            and (isinstance(part, Mapping) or part.shape)
        }

    def _row_spec(self, spec: specs.Array) -> specs.Array:
        tensor_spec = row_tensor_spec(dm_env_spec_to_tensor_spec(spec), self.num_envs)
        return tensor_spec_to_dm_env_spec(tensor_spec)

    def _repeated(self, value: Any) -> Any:
        array = np.asarray(value, object if isinstance(value, str) else None)
        return np.repeat(array[None], self.num_envs, axis=0)

    def _checked(self) -> dm_env.TimeStep:
        assert self._last is not None, "a step was taken"
        errors = self._last.observation.get(batches.ROW_ERRORS, "")
        text = batches.row_errors(errors, self.num_envs).get(self.row)
        if text is not None:
            message = f"row {self.row} failed: {text}"
            raise DmEnvRpcError(status_pb2.Status(code=code_pb2.INTERNAL, message=message))
        return self._timestep(self._last)

    def _timestep(self, batch: dm_env.TimeStep) -> dm_env.TimeStep:
        step_type = dm_env.StepType(int(batch.observation[batches.STEP_TYPE][self.row]))
        observation = self._row_values(batch.observation)
        if step_type is dm_env.StepType.FIRST or batch.reward is None:
            return dm_env.TimeStep(step_type, None, None, observation)
        reward, discount = (each[self.row] for each in (batch.reward, batch.discount))
        return dm_env.TimeStep(step_type, reward, discount, observation)

    def _row_values(self, structure: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: self._row_values(part) if isinstance(part, Mapping) else part[self.row]
            for name, part in structure.items()
            if name not in batches.OF_BATCH and (isinstance(part, Mapping) or np.ndim(part))
        }
