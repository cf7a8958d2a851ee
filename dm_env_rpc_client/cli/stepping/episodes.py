"""Episodes of a world, or of all rows of a batched one, for `dm-env-rpc run`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import dm_env
import numpy as np
import numpy.typing as npt

from dm_env_rpc_client.cli.stepping.watch import CUT_OFF, Watch
from dm_env_rpc_client.errors import DmEnvRpcError, EnvironmentsFailedError
from dm_env_rpc_client.protocol import batches

if TYPE_CHECKING:
    from dm_env_rpc_client.cli.stepping.policies import Policy
    from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor


class Episodes:
    """Runs episodes, in a batched world in all rows at once.

    Each row runs as many as the others, give or take one: of those that end first, more would be
    short. A world that is no batch has one row.

    Args:
      env: the world.
      num_envs: the number of its rows; None if it is no batch.
      act: the policy; its actions are those of all rows.
      count: the number of episodes of all rows.
      max_steps: the number of steps after which an episode is cut off.
      watch: finds out what a step waits for.
      step: takes a step, and the time.
    """

    def __init__(
        self,
        env: DmEnvAdaptor,
        num_envs: int | None,
        act: Policy,
        count: int,
        max_steps: int,
        watch: Watch,
        step: Callable[[Any], dm_env.TimeStep],
    ):
        self._env = env
        self._act = act
        self._max_steps = max_steps
        self._watch = watch
        self._step = step
        self._is_batch = num_envs is not None
        rows = np.arange(num_envs or 1)
        self._wanted = count // len(rows) + (rows < count % len(rows))
        self._returns = np.zeros(len(rows))
        self._lengths = np.zeros(len(rows), int)
        self._takes_mask = self._is_batch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields each episode when it has ended."""
        timestep = self._reset(None)
        while self._wanted.any():
            timestep = self._step(self._act(timestep))
            self._check(timestep)
            kinds = np.atleast_1d(
                timestep.observation[batches.STEP_TYPE] if self._is_batch else timestep.step_type
            )
            stepped = kinds != dm_env.StepType.FIRST
            rewards = np.asarray(0.0 if timestep.reward is None else timestep.reward)
            sums = rewards.reshape(len(kinds), -1).sum(axis=1) if rewards.ndim else rewards
            self._returns += np.where(stepped, sums, 0.0)
            self._lengths += stepped
            is_last = kinds == dm_env.StepType.LAST
            is_cut = ~is_last & (self._lengths >= self._max_steps)
            for row in np.flatnonzero((is_last | is_cut) & (self._wanted > 0)):
                self._wanted[row] -= 1
                yield self._episode(int(row), timestep, bool(is_cut[row]))
            ended = is_last | is_cut
            self._returns[ended] = self._lengths[ended] = 0
            if ended.any() and self._wanted.any():
                timestep = self._begin(ended, is_cut, timestep)

    def _episode(self, row: int, timestep: dm_env.TimeStep, is_cut: bool) -> dict[str, Any]:
        discount = timestep.discount
        if self._is_batch and discount is not None:
            discount = discount[row]
        ended = "interrupted" if discount is None or np.any(discount) else "terminated"
        return {
            **({"row": row} if self._is_batch else {}),
            "return": float(self._returns[row]),
            "length": int(self._lengths[row]),
            "ended": CUT_OFF if is_cut else ended,
        }

    def _begin(
        self, ended: npt.NDArray[np.bool_], is_cut: npt.NDArray[np.bool_], last: dm_env.TimeStep
    ) -> dm_env.TimeStep:
        """Begins sequences where one has ended; where none can begin alone, the next step does."""
        if self._takes_mask:
            try:
                return self._reset(ended)
            except DmEnvRpcError:
                # A vector environment that begins them itself.
                self._takes_mask = False
        if self._is_batch and not is_cut.any():
            return last
        self._returns[:] = self._lengths[:] = 0
        return self._reset(None)

    def _reset(self, mask: npt.NDArray[np.bool_] | None) -> dm_env.TimeStep:
        with self._watch.step():
            timestep = self._env.reset(None if mask is None else {batches.RESET_MASK: mask})
        self._check(timestep)
        return timestep

    def _check(self, timestep: dm_env.TimeStep) -> None:
        """Raises EnvironmentsFailedError if rows have raised something."""
        if not self._is_batch:
            return
        errors = timestep.observation.get(batches.ROW_ERRORS, "")
        found = batches.row_errors(errors, len(self._lengths))
        if found:
            failures: dict[int, Exception] = {row: RuntimeError(e) for row, e in found.items()}
            address = self._env.connection.address
            raise EnvironmentsFailedError(failures, dict.fromkeys(failures, address))
