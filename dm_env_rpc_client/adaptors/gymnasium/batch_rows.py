"""Server-side rows of a batch of Gymnasium environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import dm_env
import gymnasium
import numpy as np
import tree
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client.adaptors.gymnasium import elements
from dm_env_rpc_client.adaptors.gymnasium.calls.served import OfEach, ServedCalls
from dm_env_rpc_client.adaptors.gymnasium.info_observation import OWN, STACKED
from dm_env_rpc_client.adaptors.gymnasium.returns import as_reward, explain
from dm_env_rpc_client.adaptors.gymnasium.row_infos import OwnInfos, StackedInfos
from dm_env_rpc_client.adaptors.gymnasium.vector_description import (
    VECTOR_DESCRIPTION,
    describe_vector,
    encoded_frames,
)
from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.protocol import autoreset
from dm_env_rpc_client.server.errors import RequestError, environment_error
from dm_env_rpc_client.server.properties import Properties
from dm_env_rpc_client.server.rows import Offers, RowKind, Rows
from dm_env_rpc_client.server.thread_bound import in_thread_of
from dm_env_rpc_client.tensors import structures


class Row(Protocol):
    """The members of `GymnasiumEnvironment` that the rows of a batch need."""

    gymnasium: gymnasium.Env[Any, Any]
    action_space: spaces.Space[Any]
    observation_space: spaces.Space[Any]
    spaces_json: dict[str, Any]
    notes: list[str]
    infos: bool | str

    def action_spec(self) -> Any:
        """Return the spec of actions."""

    def reward_spec(self) -> Any:
        """Return the spec of the reward."""

    def discount_spec(self) -> Any:
        """Return the spec of the discount."""

    def begin(self) -> tuple[Any, dict[str, Any]]:
        """Begin an episode with the configured seed and options."""


_OBSERVATION = "observation"

_FIRST, _MID, _LAST = dm_env.StepType


class GymnasiumOffers(Offers):
    """Server properties for a batch's description, rendered frames and method calls.

    Args:
      mode: the autoreset mode of the rows.
    """

    def __init__(self, mode: AutoresetMode):
        self._mode = mode
        self._calls = ServedCalls()

    def properties(
        self, environments: Sequence[dm_env.Environment]
    ) -> Mapping[str, Callable[[], Any]]:
        first, count, mode = environments[0], len(environments), self._mode
        offered: dict[str, Callable[[], Any]] = {
            VECTOR_DESCRIPTION: lambda: in_thread_of(first, _described, count, mode)
        }
        if in_thread_of(first, _has_frames):
            offered.update(
                encoded_frames(lambda: [in_thread_of(row, _rendered) for row in environments])
            )
        return offered

    def offer_calls(
        self,
        properties: Properties,
        environments: Sequence[dm_env.Environment],
        callable_names: Sequence[str],
        settable_names: Sequence[str],
    ) -> None:
        count = len(environments)
        callee = OfEach(
            count,
            lambda row, *given: in_thread_of(environments[row], _with_gymnasium, *given),
        )
        self._calls.offer(properties, callee, callable_names, settable_names, count)


# These functions run where the rows are, which may be another process.


def _described(row: Row, count: int, mode: AutoresetMode) -> str:
    return describe_vector(row.gymnasium, count, mode, row.spaces_json, row.notes, (OWN, STACKED))


def _has_frames(row: Row) -> bool:
    return row.gymnasium.render_mode is not None


def _rendered(row: Row) -> Any:
    return row.gymnasium.render()


def _with_gymnasium(row: Row, function: Callable[..., Any], *arguments: Any) -> Any:
    return function(row.gymnasium, *arguments)


class GymnasiumRows(Rows):
    """Environments that step like `gymnasium.vector.SyncVectorEnv` but can fail independently.

    Args:
      environment: the environment of any row; all rows have the same spaces.
      count: the number of rows.
      mode: the name of an `AutoresetMode`; an unknown name means NEXT_STEP.
    """

    infos: StackedInfos | OwnInfos | None

    def __init__(self, environment: Row, count: int, mode: str):
        own_mode = getattr(AutoresetMode, mode, AutoresetMode.NEXT_STEP)
        self._next_kind = autoreset.next_kind(own_mode.name)
        space = environment.observation_space
        self._action_space = environment.action_space
        self._read_action = elements.reader(environment.action_space, "action", as_sampled=True)
        self._write_observation = elements.writer(space, _OBSERVATION)
        self._read_observation = elements.reader(space, _OBSERVATION)
        form = environment.infos
        infos: StackedInfos | OwnInfos | None = None
        if form:
            infos = OwnInfos() if form == OWN else StackedInfos(count, form == STACKED)
        single = elements.to_spec(space, _OBSERVATION)
        kind = RowKind(
            environment.action_spec(),
            single,
            environment.reward_spec(),
            environment.discount_spec(),
            [leaf.name for leaf in structures.leaves(single)],
            mode=own_mode.name,
            infos=infos,
            offers=GymnasiumOffers(own_mode),
            form=form,
        )
        super().__init__(kind, count)
        self._flatten = structures.flattener(single, _OBSERVATION)
        # Fast path for the most frequent spaces: no walk over a structure for each row.
        is_box = isinstance(space, spaces.Box)
        self._array: Any = self._observation if is_box else None
        self._shape, self._dtype = (space.shape, space.dtype) if is_box else (None, None)
        # A Box whose wire dtype differs is first cast to the dtype of the space.
        has_own_dtype = is_box and self._columns[0].dtype == self._dtype
        self._box = self._columns[0] if has_own_dtype else None
        # Fast path for Python integers.
        self._integers = range(0)
        if isinstance(space, spaces.Discrete):
            limits = np.iinfo(np.dtype(space.dtype))
            self._array = self._observation
            self._integers = range(int(limits.min), int(limits.max) + 1)

    def fits(self, environment: Row) -> bool:
        """Whether the client of `environment` requested the form of infos that these rows use."""
        return bool(self.kind.form == environment.infos)

    def actions(self, action: Any) -> Any:
        """Return the actions of all rows, as a list or as a structure of arrays."""
        space = self._action_space
        if isinstance(space, elements.ARRAYS):
            array = np.asarray(action, space.dtype)
            if space.shape or isinstance(space, spaces.Discrete):
                return list(array)
            return [array[index, ...] for index in range(len(array))]
        return action

    def begin(self, index: int, environment: Row) -> None:
        """Begin an episode with the configured seed and options."""
        self._kinds[index] = _LAST  # If this fails, the next step begins an episode.
        observation, info = environment.begin()
        self._put(index, observation)
        if info and self.infos is not None:
            self.infos.put(index, info)
        self._reward[index], self._discount[index] = 0.0, 1.0
        self._step_type[index] = self._kinds[index] = _FIRST
        self._both[index], self.has_begun[index] = False, True

    def step(self, index: int, environment: Row, actions: Any) -> None:
        """Take a step.

        If no episode is running, begin one, or raise an error in mode DISABLED.
        """
        was = self._kinds[index]
        if was is _LAST:
            if self._next_kind is None:
                raise gymnasium.error.ResetNeeded("no episode is running: call reset() first")
            self.begin(index, environment)
            return
        if type(actions) is list:
            action = actions[index]
        else:
            row = tree.map_structure(lambda column: column[index], actions)
            try:
                action = self._read_action(row)
            except ProtocolError as error:  # From JSON, which encodes the actions of a Graph.
                raise RequestError.invalid(str(error)) from error
        try:
            observation, reward, terminated, truncated, info = environment.gymnasium.step(action)
        except (TypeError, ValueError) as error:
            explain(environment.gymnasium, "step", error)
            raise
        is_last = bool(terminated or truncated)
        if is_last:  # At once: the episode has ended even if a value below is invalid.
            self._kinds[index] = _LAST
        if not isinstance(reward, float):
            reward = as_reward(environment.gymnasium, reward)
        if is_last and self._next_kind is _MID:
            structure, _ = self._fitted(observation)
            infos = self.infos
            final = None if infos is None else infos.final(self._element(structure), info)
            observation, info = environment.begin()
            self._put(index, observation)
            self._kinds[index] = _FIRST
            if infos is not None:
                infos.put_final(index, final)
        elif (
            type(observation) is np.ndarray
            and observation.shape == self._shape
            and observation.dtype is self._dtype
        ):
            self._array[index] = observation  # Like `_put`, without the call.
        else:
            self._put(index, observation)
        if info and self.infos is not None:
            self.infos.put(index, info)
        self._reward[index] = reward
        if is_last or was is not _MID:
            self._discount[index] = 0.0 if terminated else 1.0
            self._step_type[index] = _LAST if is_last else _MID
            self._both[index] = bool(terminated and truncated)
            if not is_last:
                self._kinds[index] = _MID

    def _put(self, index: int, observation: Any) -> None:
        """Store an observation in a row, or raise RuntimeError if it does not match its space."""
        if type(observation) is int and observation in self._integers:
            self._array[index] = observation
            return
        if self._box is not None and type(observation) is np.ndarray:
            try:
                self._array[index] = self._box.taken(observation)
            except SpecError as error:
                raise environment_error(error, "space") from error
            return
        _, fitted = self._fitted(observation)
        for column, value in zip(self._columns, fitted, strict=True):
            column.array[index] = value

    def _fitted(self, observation: Any) -> tuple[Any, list[Any]]:
        """Return an observation as a structure that matches its spec, and as a list of columns."""
        try:
            structure = self._write_observation(observation)
            leaves = zip(self._columns, self._flatten(structure), strict=True)
            return structure, [column.taken(leaf) for column, leaf in leaves]
        except SpecError as error:
            raise environment_error(error, "space") from error

    def _element(self, structure: Any) -> Any:
        """Convert an observation's structure to the element that clients receive."""
        return self._read_observation(structure)
