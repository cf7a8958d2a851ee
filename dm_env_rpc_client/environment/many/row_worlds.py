"""The base class for N environments, and a subclass that runs each one in its own world.

`BatchWorlds` uses batched worlds, and `StreamWorlds` uses one stream per row. Actions are mappings
of flat names to arrays [N, ...]. `Rows` stores the TimeSteps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dm_env_rpc_client.environment.many.pool import NO_ACTION, EnvironmentPool
from dm_env_rpc_client.environment.many.rows import Rows, RowSpecs, split_action
from dm_env_rpc_client.protocol.lifecycle import State

Result = TypeVar("Result")
Ids = TypeVar("Ids")


class RowWorlds:
    """The base class of `StreamWorlds` and `BatchWorlds`, which run N environments.

    Args:
      pool: one environment for each world; closed with this object.
      groups: the rows of each world, by their indices.

    Attributes:
      pool: one environment for each world.
      groups: the rows of each world, by their indices.
      num_envs: the number of environments, N.
      addresses: the address of each environment's server.
      is_batched: whether the worlds are batches, even of one row.
      follows_at_once: whether the step that ends a sequence also begins the next one.
    """

    is_batched: bool

    def __init__(self, pool: EnvironmentPool, groups: Sequence[Sequence[int]]):
        self.pool = pool
        self.groups = groups
        self.num_envs = sum(map(len, groups))
        own = zip(pool.addresses, groups, strict=True)
        of_rows = {row: address for address, rows in own for row in rows}
        self.addresses = [of_rows[row] for row in range(self.num_envs)]
        self.follows_at_once = False

    @property
    def restarts(self) -> int:
        """The total number of restarts; a restarted world counts once for each of its rows."""
        worlds = zip(self.pool.environments, self.groups, strict=True)
        return sum(environment.restarts * len(rows) for environment, rows in worlds)

    def close(self) -> None:
        """Leave and destroy all worlds, and close the connections, without raising errors."""
        self.pool.close()

    def exchange(
        self, results: Callable[[Ids], Result], act: Callable[..., Ids], *arguments: Any
    ) -> Result:
        """Return `results(act(*arguments))`, where `act` steps, receives or resets environments.

        After an interrupt, worlds with lost answers become unusable, so that no later step follows
        an unseen step.

        Args:
          results: called with the result of `act`.
          act: `step`, `receive` or `reset`.
          *arguments: the arguments of `act`.
        """
        try:
            # Both in one `try`: an interrupt between them loses the answers as well.
            return results(act(*arguments))
        except BaseException as error:
            self._interrupted(error)
            raise

    def _interrupted(self, error: BaseException) -> None:
        """Make worlds unusable if `error` caused their answers to be lost."""
        self.pool.interrupted(error)


class StreamWorlds(RowWorlds):
    """N environments, each in its own world and with its own stream.

    Args:
      pool: the environments; closed with this object.
    """

    is_batched = False

    def __init__(self, pool: EnvironmentPool):
        super().__init__(pool, [[index] for index in range(len(pool))])

    def specs(self) -> RowSpecs:
        """Return the specs of one row."""
        first = self.pool.environments[0]
        return RowSpecs(
            first.action_spec(),
            first.observation_spec(),
            first.reward_spec(),
            first.discount_spec(),
        )

    def step(self, actions: Mapping[str, Any], rows: Rows, idle: Collection[int] = ()) -> None:
        """Step all rows and wait for their answers (within `exchange`; see `BatchWorlds.step`)."""
        self.pool.taken = []
        self.pool.step(self._split(actions, range(self.num_envs), idle), rows)

    def send(
        self, actions: Mapping[str, Any], ids: Sequence[int], idle: Collection[int] = ()
    ) -> None:
        """Step the rows `ids` without waiting for their answers; see `BatchWorlds.send`."""
        self.pool.send(self._split(actions, ids, idle))

    def receive(self, minimum: int, maximum: int | None, rows: Rows) -> npt.NDArray[np.int64]:
        """Wait for answers to pending steps (within `exchange`; see `EnvironmentPool.receive`)."""
        self.pool.taken = []
        return np.array(self.pool.receive(minimum, maximum, rows), np.int64)

    def reset(
        self,
        settings: Mapping[int, Mapping[str, Any]],
        rows: Rows,
        adopt: Callable[[bool], None],
    ) -> None:
        """Begin a sequence in some rows (within `exchange`; see `EnvironmentPool.reset`)."""
        self.pool.taken = []
        self.pool.reset(settings, rows, adopt)

    def idle(self, ids: Iterable[int]) -> set[int]:
        """Return the rows among `ids` that have no running sequence."""
        environments = self.pool.environments
        return {index for index in ids if environments[index].state is not State.RUNNING}

    def check_idle(self, ids: Iterable[int]) -> None:
        """Raise SpecError if any of the given rows has a pending step."""
        self.pool.check_idle(ids)

    def _split(
        self, actions: Mapping[str, Any], ids: Sequence[int], idle: Collection[int]
    ) -> dict[int, Mapping[str, Any]]:
        rows = split_action(actions, self.pool.environments[0].action_spec(), len(ids))
        split: dict[int, Mapping[str, Any]] = dict(zip(ids, rows, strict=True))
        # An environment that begins a sequence takes no action, and its value need not conform.
        split.update(dict.fromkeys(idle, NO_ACTION))
        return split
