"""The latest steps of N environments, in the form that Gymnasium's vector environments use.

Environments that have their own streams send infos separately. A batch sends the infos of all rows
together, either stacked as in Gymnasium or listed by row in one string; see `info_observation`.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import dm_env
import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client.adaptors.gymnasium.from_dm_env import info_of, is_terminated
from dm_env_rpc_client.adaptors.gymnasium.info_observation import (
    EXTRAS,
    FINAL_INFO,
    FINAL_OBSERVATION,
    RowInfo,
    extras_of,
    extras_of_rows,
    is_of_rows,
    unstacked,
)
from dm_env_rpc_client.adaptors.gymnasium.row_spaces import RowSpaces
from dm_env_rpc_client.environment.many.row_worlds import RowWorlds
from dm_env_rpc_client.environment.many.rows import Rows
from dm_env_rpc_client.errors import EnvironmentsFailedError, SpecError
from dm_env_rpc_client.protocol.autoreset import next_kind
from dm_env_rpc_client.protocol.batches import INFO_ARRAYS, STEP_TYPE
from dm_env_rpc_client.protocol.timesteps import MidSteps
from dm_env_rpc_client.tensors.columns import VARIABLE

Array: TypeAlias = npt.NDArray[Any]


class EpisodeInfos:
    """Received infos that have not been returned yet.

    Args:
      addresses: the server address of each environment, for error messages.
    """

    def __init__(self, addresses: Sequence[str]):
        self._addresses = addresses
        # Infos of single environments, and stacks of infos with the indices of their rows.
        self._own: dict[int, RowInfo] = {}
        self._stacks: list[tuple[Array, Mapping[str, Any]]] = []

    def put(self, index: int, info: dict[str, Any]) -> None:
        """Record the info of a step, or of the reset that follows within the same step."""
        former = self._own.get(index)
        self._own[index] = RowInfo(info) if former is None else former._replace(info=info)

    def put_final(self, index: int, info: dict[str, Any], observation: Any) -> None:
        """Record an episode's final info and observation, before those of the next episode."""
        self._own[index] = RowInfo({}, info, observation)

    def put_rows(
        self, rows: Array, text: str, which: Any, count: int, arrays: Any = None
    ) -> Array | None:
        """Record the infos that arrived with the observations of a batch.

        Args:
          rows: the indices of the selected rows.
          text: the observation `gymnasium`, which is not empty.
          which: the index that selects these rows in the batch; a slice selects all of them.
          count: the number of rows of the batch.
          arrays: the observation that contains large arrays, if there is one.

        Returns:
          A bool mask of the selected rows whose episodes were both terminated and truncated, or
          None if there are no such rows.

        Raises:
          ProtocolError: the text is invalid.
        """
        stack, own, both = extras_of_rows(text, count, arrays)
        places = np.arange(count)[which]
        if stack:
            self._stacks.append(
                (rows, stack if type(which) is slice else _rows(stack, places, count))
            )
        if own:
            for row, place in zip(rows.tolist(), places.tolist(), strict=True):
                info, former = own.get(place), self._own.get(row)
                if info is not None:
                    # The row's former episode was lost: it ends in this step, and the next begins.
                    self._own[row] = info if former is None else former._replace(info=info.info)
        return None if both is None else both[which]

    def forget(self, rows: Collection[int]) -> None:
        """Drop the infos of some rows."""
        if self._own:
            for row in rows:
                self._own.pop(row, None)
        if self._stacks:
            self._stacks = self._without(np.array(list(rows)))

    def each(self) -> list[RowInfo]:
        """Return and discard the infos of each row; raise the errors of `stack`."""
        own, self._own = self._own, {}
        failures: dict[int, Exception] = {}
        found = unstacked(self._taken(None, failures), len(self._addresses))
        self._check(failures)
        for row, info in own.items():
            found[row] = info._replace(info={**found[row].info, **info.info})
        return found

    def stack(self, ids: Array | None, are_spread: bool = False) -> dict[str, Any]:
        """Return and discard the infos of some or all rows, stacked together.

        Args:
          ids: the rows; None for all.
          are_spread: whether each row keeps its index among all rows.

        Raises:
          EnvironmentsFailedError: Gymnasium cannot stack the info of a row with the other infos.
        """
        count = len(self._addresses)
        failures: dict[int, Exception] = {}
        infos = self._taken(ids, failures) if self._stacks else {}
        if are_spread and ids is not None and infos:
            stacked, infos = infos, {}
            put_together(infos, stacked, (np.arange(len(ids)), len(ids)), ids, count)
        if not self._own:
            self._check(failures)
            return infos
        rows = range(count) if ids is None else ids.tolist()
        self.num_envs = count if are_spread else len(rows)
        for place, row in zip(rows if are_spread else range(len(rows)), rows, strict=True):
            own = self._own.pop(row, None)
            if own is None:
                continue
            try:
                if own.final_observation is not None:
                    final = {FINAL_OBSERVATION: own.final_observation, FINAL_INFO: own.final_info}
                    infos = self._add_info(infos, final, place)
                infos = self._add_info(infos, own.info, place)
            except Exception as error:  # Another shape than the others, or too large an integer.
                failures[row] = _unstackable(error)
        self._check(failures)
        return infos

    # Borrowed from Gymnasium's vector environments; of `self` it needs only `num_envs`.
    _add_info: Any = gymnasium.vector.VectorEnv._add_info

    def _taken(self, ids: Array | None, failures: dict[int, Exception]) -> dict[str, Any]:
        """Return and discard the stacked infos of some or all rows, as a single stack.

        Args:
          ids: the rows; None for all.
          failures: receives an error for each row whose infos cannot be stacked with the others.
        """
        stacks, self._stacks = self._stacks, [] if ids is None else self._without(ids)
        count = len(self._addresses) if ids is None else len(ids)
        if ids is None and len(stacks) == 1 and len(stacks[0][0]) == count:
            return dict(stacks[0][1])
        infos: dict[str, Any] = {}
        for rows, own in stacks:
            wanted = np.arange(len(rows)) if ids is None else np.flatnonzero(np.isin(rows, ids))
            if not len(wanted):
                continue
            places = rows
            if ids is not None:
                places = np.array([int(np.flatnonzero(ids == row)[0]) for row in rows[wanted]])
            try:
                put_together(infos, own, (wanted, len(rows)), places, count)
            except ValueError as error:  # Another shape than in the other batches.
                failures.update(dict.fromkeys(rows[wanted].tolist(), _unstackable(error)))
        return infos

    def _without(self, ids: Array) -> list[tuple[Array, Mapping[str, Any]]]:
        """Return the stacked infos of all rows except the given ones."""
        found: list[tuple[Array, Mapping[str, Any]]] = []
        for rows, own in self._stacks:
            kept = np.flatnonzero(np.isin(rows, ids, invert=True))
            if len(kept):
                found.append((rows[kept], _rows(own, kept, len(rows))))
        return found

    def _check(self, failures: Mapping[int, Exception]) -> None:
        if failures:
            raise EnvironmentsFailedError(failures, {row: self._addresses[row] for row in failures})


def _unstackable(error: Exception) -> SpecError:
    text = f"{type(error).__name__}: {error}"
    return SpecError(f"its info cannot be stacked with the others: {text}")


def _rows(infos: Mapping[str, Any], which: Array, count: int) -> dict[str, Any]:
    """Select some rows from the stacked infos of `count` rows."""
    own: dict[str, Any] = {}
    put_together(own, infos, (which, count), np.arange(len(which)), len(which))
    return own


def put_together(
    target: dict[str, Any],
    infos: Mapping[str, Any],
    source: tuple[Array, int],
    places: Array,
    count: int,
) -> None:
    """Copy rows of stacked infos into a larger stack, adding keys if necessary.

    Args:
      target: the infos to extend.
      infos: the infos of some rows; the mask of `key` is `_key`. A value that is not an array of
        rows is copied unchanged and replaces the value of other rows.
      source: the rows to copy, and the number of rows of `infos`.
      places: the indices of these rows in `target`.
      count: the number of rows of `target`.
    """
    rows, size = source
    masks = {f"_{key}" for key in infos}
    for key, value in infos.items():
        # Rows without this info must not create the key.
        mask = value if key in masks else infos.get(f"_{key}")
        if is_of_rows(mask, size) and not mask[rows].any():
            continue
        own = target.get(key)
        if isinstance(value, dict):
            target[key] = own if isinstance(own, dict) else {}
            put_together(target[key], value, source, places, count)
            continue
        if not is_of_rows(value, size):
            target[key] = value
            continue
        if not is_of_rows(own, count):
            shape = (count, *value.shape[1:])
            is_object = value.dtype.kind == "O"
            target[key] = np.full(shape, None) if is_object else np.zeros(shape, value.dtype)
        elif value.dtype.kind in "SU":  # Texts of another length have another dtype.
            target[key] = target[key].astype(np.result_type(target[key], value), copy=False)
        target[key][places] = value[rows]


Results: TypeAlias = tuple[Any, Array, Array, Array, dict[str, Any]]
"""The return type of a vector environment's `step`."""

_FIRST, _MID, _LAST = map(int, dm_env.StepType)


class EpisodeRows(Rows):
    """Rows that also store the terminations, truncations and infos of the latest steps.

    If the step that ends an episode also begins the next one, the observation is the first
    observation of the next episode. The rest of the row belongs to the step that ended the former
    episode.

    Args:
      worlds: the environments.
      spaces: their spaces.
      mode: the autoreset mode.
      copies: whether callers own the observations and may change them.
      has_infos: whether the servers host Gymnasium environments, which send infos.

    Attributes:
      has_begun: the environments in which an episode has begun, bool [N].
    """

    _keeps = True

    def __init__(
        self,
        worlds: RowWorlds,
        spaces: RowSpaces,
        mode: AutoresetMode,
        copies: bool,
        has_infos: bool,
    ):
        super().__init__(spaces.specs, worlds.num_envs, copies)
        self.observations = spaces.empty(self.count)
        self._spaces = spaces
        # Used for environments on streams only, not for batches.
        self._environments = worlds.pool.environments
        self._begins_at_once = next_kind(mode.name) is dm_env.StepType.MID
        # For Gymnasium environments in a batch, the server already begins the next episode.
        self._is_followed = has_infos and worlds.is_batched
        self._has_infos = has_infos
        self._infos = EpisodeInfos(worlds.addresses)
        # A shallow copy is not enough for these: callers may change the arrays inside.
        observations = spaces.specs.observations
        self._objects = [n for n in self.observations if isinstance(observations[n], VARIABLE)]
        count = self.count
        self.has_begun = np.zeros(count, np.bool_)
        self._terminations = np.zeros(count, np.bool_)
        self._truncations = np.zeros(count, np.bool_)
        # The number of MID steps stored since the last step began.
        self._mid_count = 0
        # Rows whose episode has ended, and whose next one begins in the same step.
        self._restarting: set[int] = set()
        self._all_rows = np.arange(count)
        # The usual value of `step_type` in a batch with all rows.
        self._all_mid = bytes([_MID]) * count

    def begin(self) -> bool:
        """Begin a step; return whether episodes are known to be running in all environments."""
        was_mid, self._mid_count = self._mid_count == self.count, 0
        return was_mid

    def forget(self, ids: Collection[int]) -> None:
        """Discard unreturned results of environments that begin their next episodes.

        Results remain unreturned if another environment failed, so that no caller received them.
        """
        self._restarting.difference_update(ids)
        self._infos.forget(ids)

    def put(self, index: int, timestep: dm_env.TimeStep) -> bool:
        """Store the TimeStep of an environment with its own stream; see `Rows.put`."""
        environment = self._environments[index]
        info: dict[str, Any] = {}
        is_truncated = False
        if environment.interruption is not None:
            info = {"restarted": True}
        elif self._has_infos:
            info, is_truncated = extras_of(timestep.observation)
        if index in self._restarting:
            self._restarting.remove(index)
            if self._is_lent:
                self._replace_lent()
            for name, rows in self.observations.items():
                rows[index] = timestep.observation[name]
            if info:
                self._infos.put(index, info)
            return False
        is_last = timestep.step_type is dm_env.StepType.LAST
        terminated = is_last and is_terminated(environment, timestep)
        begins = self._put(index, timestep, info, terminated)
        self._truncations[index] |= is_truncated
        self._mid_count += timestep.step_type is dm_env.StepType.MID
        return begins

    def put_lost(self, index: int, timestep: dm_env.TimeStep) -> bool:
        """Store the LAST TimeStep of a row whose batch was lost; see `Rows.put_lost`."""
        return self._put(index, timestep, {"restarted": True}, False)

    def _put(
        self, index: int, timestep: dm_env.TimeStep, info: dict[str, Any], terminated: bool
    ) -> bool:
        super().put(index, timestep)
        self.has_begun[index] = True
        is_last = timestep.step_type is dm_env.StepType.LAST
        self._terminations[index] = terminated
        self._truncations[index] = is_last and not terminated
        if is_last and self._begins_at_once:
            self._end(index, timestep.observation, info)
            return True
        if info:
            self._infos.put(index, info)
        return False

    def _end(self, index: int, observation: Mapping[str, Any], info: dict[str, Any]) -> None:
        """Record that an environment begins its next episode in this step."""
        self._restarting.add(index)
        if not self._has_infos:
            info = {**info_of(self.discount[index].copy()), **info}
        self._infos.put_final(index, info, self._spaces.observation(observation))

    def put_mid_steps(self, indices: list[int], steps: MidSteps) -> slice | list[int]:
        """Store steps in the middle of episodes; see `Rows.put_mid_steps`."""
        at = super().put_mid_steps(indices, steps)
        self.has_begun[at] = True
        self._terminations[at] = self._truncations[at] = False
        if self._has_infos:
            for index, text in zip(indices, steps.values(EXTRAS), strict=True):
                if text:
                    info, self._truncations[index] = extras_of({EXTRAS: text})
                    self._infos.put(index, info)
        # Last, because an error above leads to a second call.
        self._mid_count += len(indices)
        return at

    def put_rows(self, at: Any, taken: Any, timestep: dm_env.TimeStep) -> Sequence[int]:
        """Store the TimeStep of a batch; see `Rows.put_rows`."""
        kinds = timestep.observation[STEP_TYPE]
        which = slice(None) if taken is None else taken
        ended: list[int] = []
        mid_count = 0
        if at is None and not self._restarting and kinds.tobytes() == self._all_mid:
            super().put_rows(at, taken, timestep)
            rows = self._all_rows
            self.has_begun.fill(True)
            self._terminations.fill(False)
            self._truncations.fill(False)
            mid_count = self.count
        else:
            rows = self._all_rows[slice(None) if at is None else at]
            self.has_begun[rows] = True
            if self._restarting and self._restarting.issuperset(rows.tolist()):
                self._restarting.difference_update(rows.tolist())
                self._put_observations(rows, which, timestep.observation)
            else:
                super().put_rows(at, taken, timestep)
                ended = self._put_ends(rows, kinds[which], timestep.discount is not None)
                mid_count = int(np.count_nonzero(kinds[which] == _MID))
        text = str(timestep.observation[EXTRAS]) if self._has_infos else ""
        if text:
            arrays = timestep.observation.get(INFO_ARRAYS)
            both = self._infos.put_rows(rows, text, which, len(kinds), arrays)
            if both is not None:
                self._truncations[rows] |= both
        # After the infos, which can be invalid: unless all rows are counted, the next step drops
        # what this one has not returned.
        self._mid_count += mid_count
        if self._is_followed or not self._begins_at_once:
            return ()
        for row in ended:
            own = {name: copy.copy(values[row]) for name, values in self.observations.items()}
            self._end(row, own, {})
        return ended

    def _put_ends(self, rows: Array, kinds: Array, has_discount: bool) -> list[int]:
        """Record which episodes of a batch have ended, and return their rows."""
        terminated = is_last = kinds == _LAST
        if has_discount:
            axes = tuple(range(1, self.discount.ndim))
            terminated = is_last & ~np.any(self.discount[rows], axis=axes)
        self._terminations[rows] = terminated
        self._truncations[rows] = is_last & ~terminated
        ended: list[int] = rows[is_last].tolist()
        return ended

    def results(self, ids: Array | None) -> Results:
        """Return the result of `step` for some environments, or for all if `ids` is None."""
        return (*self.arrays(ids), self.infos(ids))

    def arrays(self, ids: Array | None) -> tuple[Any, Array, Array, Array]:
        """Return the result of `step` without the infos."""
        which = slice(None) if ids is None else ids
        return (
            self.elements(ids),
            self.reward[which].astype(np.float64),
            self._terminations[which].copy(),
            self._truncations[which].copy(),
        )

    def elements(self, ids: Array | None) -> Any:
        """Return the observations of some environments, or of all if `ids` is None."""
        flat = self.lend(ids)
        if self._copies:
            for name in self._objects:
                flat[name] = copy.deepcopy(flat[name])
        return self._spaces.observations(flat)

    def infos(self, ids: Array | None) -> dict[str, Any]:
        """Return the stacked infos of some environments' latest steps, or of all if `ids` is None.

        Raises:
          EnvironmentsFailedError: see `EpisodeInfos.stack`.
        """
        infos = self._infos.stack(ids)
        if self._has_infos:
            return infos
        which = slice(None) if ids is None else ids
        is_scalar = self.discount.ndim == 1
        discounts = self.discount[which].astype(np.float64 if is_scalar else self.discount.dtype)
        has_discount = self._has_discount()[which]
        if self._mid_count == self.count:
            return {"discount": discounts, "_discount": has_discount}
        if not has_discount.any():
            return infos
        mask = has_discount.reshape(-1, *[1] * (discounts.ndim - 1))
        return {"discount": np.where(mask, discounts, 0), "_discount": has_discount, **infos}

    def first_infos(self, ids: Sequence[int]) -> dict[str, Any]:
        """Return the infos of Gymnasium environments after a reset. Others have no infos.

        Each info is in the row with the index of its environment. The errors are those of `infos`.
        """
        return self._infos.stack(np.array(ids), are_spread=True) if self._has_infos else {}

    def each_info(self) -> list[RowInfo]:
        """Return the infos of each environment's latest step or reset."""
        found = self._infos.each()
        if not self._has_infos:
            for index in np.flatnonzero(self._has_discount()).tolist():
                info = {**info_of(self.discount[index].copy()), **found[index].info}
                found[index] = found[index]._replace(info=info)
        return found

    def _has_discount(self) -> Array:
        """Return a mask, bool [N], of the rows whose info contains the step's discount."""
        has: Array = self.step_type == _MID if self._begins_at_once else self.step_type != _FIRST
        return has
