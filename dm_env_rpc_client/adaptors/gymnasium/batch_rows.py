"""The rows of a batch of Gymnasium environments, at a server; see `server.batch.Rows`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import dm_env
import gymnasium
import numpy as np
import tree
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client.adaptors.gymnasium import batch_elements, elements
from dm_env_rpc_client.adaptors.gymnasium.calls.served import OfEach, ServedCalls
from dm_env_rpc_client.adaptors.gymnasium.returns import explain
from dm_env_rpc_client.adaptors.gymnasium.vector_description import (
    VECTOR_DESCRIPTION,
    describe_vector,
    encoded_extras,
    encoded_frames,
    row_specs,
)
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.server.batch_rows import named, zeros
from dm_env_rpc_client.server.properties.offered import Properties
from dm_env_rpc_client.server.turns import failed

__all__ = ["GymnasiumRows"]


class Row(Protocol):
    """What is needed of a `GymnasiumEnvironment`."""

    gymnasium: gymnasium.Env[Any, Any]
    action_space: spaces.Space[Any]
    observation_space: spaces.Space[Any]
    spaces_json: dict[str, Any]
    notes: list[str]
    has_extras: bool

    def begin(self) -> tuple[Any, dict[str, Any]]:
        """Begins an episode with the seed and options that it was configured with."""


_FIRST, _MID, _LAST = (np.uint8(kind) for kind in dm_env.StepType)


class GymnasiumRows:
    """Steps environments as `gymnasium.vector.SyncVectorEnv` does, each of which may fail alone.

    Args:
      environment: has the spaces of all rows.
      count: the number of rows.
      mode: the name of an `AutoresetMode`; NEXT_STEP in place of one that Gymnasium does not have.

    Attributes:
      As of `server.batch.Rows`.
    """

    def __init__(self, environment: Row, count: int, mode: str):
        self.num_envs = count
        self._mode = getattr(AutoresetMode, mode, AutoresetMode.NEXT_STEP)
        self.mode = self._mode.name
        self.has_begun = np.zeros(count, np.bool_)
        self._action_space = environment.action_space
        self._space = space = environment.observation_space
        self._has_extras = environment.has_extras
        self.action_spec = batch_elements.to_spec(environment.action_space, count, "action")
        spec = batch_elements.to_spec(space, count, "observation")
        self.observation_spec, self.reward_spec, self.discount_spec = row_specs(
            spec, count, self._has_extras, has_row_errors=True
        )
        self._observation = zeros(spec)
        self._leaves = tree.flatten(self._observation)
        # The most frequent case, without the walk over a structure for each row.
        self._array: Any = self._leaves[0] if isinstance(space, spaces.Box) else None
        self._shape = space.shape if isinstance(space, spaces.Box) else None
        self._reward = np.zeros(count)
        self._discount = np.ones(count)
        self._step_type = np.full(count, _FIRST)
        # Whether an episode was terminated and truncated.
        self._both = np.zeros(count, np.bool_)
        self._is_running = [False] * count
        # The rows in the middle of an episode, whose discount and kind do not change in a step.
        self._is_mid = [False] * count
        self._calls = ServedCalls()
        # Of rows, which may step at the same time: final infos before those of the next episode.
        self._infos: dict[int, list[dict[str, Any]]] = {}

    def properties(
        self, environments: Sequence[dm_env.Environment]
    ) -> Mapping[str, Callable[[], Any]]:
        """Returns functions of the description and of the frames of all rows."""
        first, *_ = rows = cast("Sequence[Row]", environments)
        offered: dict[str, Callable[[], Any]] = {
            VECTOR_DESCRIPTION: lambda: describe_vector(
                first.gymnasium, self.num_envs, self._mode, first.spaces_json, first.notes
            )
        }
        if first.gymnasium.render_mode is not None:
            offered.update(encoded_frames(lambda: [row.gymnasium.render() for row in rows]))
        return offered

    def offer_calls(
        self,
        properties: Properties,
        environments: Sequence[dm_env.Environment],
        callable_names: Sequence[str],
        settable_names: Sequence[str],
    ) -> None:
        """Adds properties with which clients call and set what is allowed in the rows."""
        rows = cast("Sequence[Row]", environments)
        callee = OfEach([row.gymnasium for row in rows])
        self._calls.offer(properties, callee, callable_names, settable_names, self.num_envs)

    def actions(self, action: Any) -> Any:
        """Returns what has the action of each row: a list, or arrays in the structure of one."""
        space = self._action_space
        if isinstance(space, elements.ARRAYS):
            return list(np.asarray(action, space.dtype))
        return action

    def begin(self, index: int, environment: Row) -> None:
        """Begins an episode with the seed and options that the environment was configured with."""
        observation, info = environment.begin()
        self._put(index, observation)
        if info:
            self._infos.setdefault(index, []).append(info)
        self._reward[index], self._discount[index] = 0.0, 1.0
        self._step_type[index] = _FIRST
        self._both[index] = self._is_mid[index] = False
        self._is_running[index] = self.has_begun[index] = True

    def step(self, index: int, environment: Row, actions: Any) -> None:
        """Takes a step; if no episode is running, begins one or, with DISABLED, raises an error."""
        was_mid = self._is_mid[index]
        if not was_mid and not self._is_running[index]:
            if self._mode is AutoresetMode.DISABLED:
                raise gymnasium.error.ResetNeeded("no episode is running: call reset() first")
            self.begin(index, environment)
            return
        if type(actions) is list:
            action = actions[index]
        else:
            row = tree.map_structure(lambda values: values[index], actions)
            action = elements.from_structure(self._action_space, row, "action")
        try:
            observation, reward, terminated, truncated, info = environment.gymnasium.step(action)
        except (TypeError, ValueError) as error:
            explain(environment.gymnasium, "step", error)
            raise
        is_last = bool(terminated or truncated)
        if is_last:
            self._is_running[index] = self._is_mid[index] = False
            if self._mode is AutoresetMode.SAME_STEP:
                final = {"final_obs": observation, "final_info": info}
                self._infos.setdefault(index, []).append(final)
                observation, info = environment.begin()
                self._is_running[index] = True
        if type(observation) is np.ndarray and observation.shape == self._shape:
            self._array[index] = observation  # `_put`, without the call.
        else:
            self._put(index, observation)
        if info:
            self._infos.setdefault(index, []).append(info)
        self._reward[index] = reward
        if is_last or not was_mid:
            self._discount[index] = 0.0 if terminated else 1.0
            self._step_type[index] = _LAST if is_last else _MID
            self._both[index] = terminated and truncated
            self._is_mid[index] = not is_last

    def timestep(self, kind: dm_env.StepType, failures: Mapping[int, str]) -> dm_env.TimeStep:
        """Returns the TimeStep of all rows, whose arrays the next one overwrites."""
        of_rows, self._infos = self._infos, {}
        infos: dict[str, Any] = {}
        for index in sorted(of_rows):
            try:
                for info in of_rows[index]:
                    infos = self._add_info(infos, info, index)
            except Exception as error:  # An info of another shape than those of other rows.
                failures = {**failures, index: failed(index, error)}
        observation = {
            batches.STEP_TYPE: self._step_type,
            batches.ROW_ERRORS: json.dumps(failures) if failures else "",
        }
        if self._has_extras:
            observation["observation"] = self._observation
            observation["gymnasium"] = encoded_extras(infos, self._both)
        else:
            observation = {**named(self._observation, "observation", ()), **observation}
        return dm_env.TimeStep(kind, self._reward, self._discount, observation)

    def _put(self, index: int, observation: Any) -> None:
        if type(observation) is np.ndarray and self._shape is not None:
            if observation.shape != self._shape:
                raise RuntimeError(
                    f"the environment violates its own space: an observation has the shape "
                    f"{list(observation.shape)}, the space {list(self._shape)}"
                )
            self._array[index] = observation
        else:
            structure = elements.to_structure(self._space, observation, "observation")
            for array, value in zip(self._leaves, tree.flatten(structure), strict=True):
                array[index] = value

    # As of Gymnasium's own vector environments, which need `num_envs` for it and nothing else.
    _add_info: Any = gymnasium.vector.VectorEnv._add_info
