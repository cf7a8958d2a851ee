"""Converts Gymnasium vector environments to dm_env environments with one row per environment.

Observations, settings and properties have the same names as in every batched world; see the guide
"Serve a batch". Clients that support Gymnasium also use the property `gymnasium.vector` and the
observation `gymnasium`. This observation contains the infos of all rows, stacked as in Gymnasium.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import dm_env
import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array

from dm_env_rpc_client.adaptors.gymnasium import elements, space_json
from dm_env_rpc_client.adaptors.gymnasium.batch_form import BatchForm, single_space
from dm_env_rpc_client.adaptors.gymnasium.calls.served import OfVector, ServedCalls
from dm_env_rpc_client.adaptors.gymnasium.info_observation import (
    BLOCKS,
    EXTRAS,
    OWN,
    STACKED,
    encoded_blocks,
    encoded_stack,
)
from dm_env_rpc_client.adaptors.gymnasium.returns import OBJECTIVES, explain, inner
from dm_env_rpc_client.adaptors.gymnasium.to_dm_env import OBSERVATION, reset_arguments
from dm_env_rpc_client.adaptors.gymnasium.vector_description import (
    VECTOR_DESCRIPTION,
    describe_vector,
    encoded_frames,
)
from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.protocol import autoreset, batches
from dm_env_rpc_client.server.errors import RequestError, environment_error
from dm_env_rpc_client.server.properties import Properties
from dm_env_rpc_client.server.rows import batched, named, observation_specs
from dm_env_rpc_client.system.foreign_environments import described, packages_of, row_count
from dm_env_rpc_client.tensors import casting, structures
from dm_env_rpc_client.tensors.specs import VariableArray

_NEXT_STEP_PACKAGES = {"envpool", "ale_py"}
"""Packages whose vector environments use NEXT_STEP without declaring an autoreset mode."""

_LARGE_BYTES = 4096
"""The minimum total size, in bytes, of all rows' observations for which large infos are offered as
bytes."""

_FIRST, _MID, _LAST = (np.uint8(kind) for kind in dm_env.StepType)


def autoreset_mode_of(env: Any, given: str | None) -> AutoresetMode:
    """Return the autoreset mode of a vector environment.

    Args:
      env: the environment.
      given: the name of the mode, for an environment that declares none.

    Raises:
      SpecError: the environment declares no mode and is not from a known package, and no mode is
        given.
    """
    declared = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    if declared is not None:
        return AutoresetMode(declared)
    kind = type(inner(env))
    if given is not None:
        return AutoresetMode[given]
    if packages_of(env) & _NEXT_STEP_PACKAGES:
        return AutoresetMode.NEXT_STEP
    raise SpecError(
        f"{kind.__name__} has no 'autoreset_mode' in its metadata, so the server cannot tell which "
        "step begins a row's next episode. Pass the mode to serve: autoreset_mode='SAME_STEP' if "
        "the step that ends an episode also begins the next one, as in most GPU simulators; "
        "'NEXT_STEP' if the step after that begins the next episode and ignores its action; or "
        "'DISABLED' if only `reset` with the option reset_mask begins it"
    )


class GymnasiumVectorEnvironment(elements.Converting, dm_env.Environment):
    """A dm_env environment that steps a Gymnasium vector environment, for instance to serve it.

    A row whose episode is terminated or truncated is LAST, with discount 0 if it is terminated and
    1 otherwise. What follows depends on the autoreset mode. With NEXT_STEP, the row is FIRST in
    the next step, which ignores the row's action. With SAME_STEP, the observation of a LAST row is
    already the first one of the next episode. With DISABLED, the row stays LAST until a reset with
    a mask that includes it.

    Args:
      env: the vector environment; `close` closes it too.
      autoreset_mode: the name of the autoreset mode, for an environment that declares none.
      arrays: as for `serve`.

    Attributes:
      reset_settings: the settings that `configure` accepts.
      num_envs: the number of rows.

    Raises:
      SpecError: dm_env has no spec for a space of the environment, a step returns only some rows,
        or the mode is unknown.
    """

    reset_settings = ("seed", "options", "infos", batches.ROWS, batches.RESET_MASK)

    def __init__(
        self,
        env: gymnasium.vector.VectorEnv[Any, Any, Any],
        autoreset_mode: str | None = None,
        arrays: str = "auto",
    ):
        self._environment = env
        self._inner: Any = inner(env)
        self._form = BatchForm(env, arrays)
        self.num_envs = count = cast("int", row_count(env))
        # With EnvPool and ALE, a step of a smaller batch returns the rows that are ready first.
        own = (getattr(self._inner, "config", None) or {}).get("batch_size") or count
        size = getattr(self._inner, "batch_size", own)
        if size != count:
            raise SpecError(
                f"{type(self._inner).__name__} steps {size} of its {count} rows at a time; create "
                f"it with batch_size={count}. Clients can use num_batches to keep several batches "
                "in flight"
            )
        self._mode = autoreset_mode_of(env, autoreset_mode)
        self._next_kind = autoreset.next_kind(self._mode.name)
        self._notes: list[str] = []
        # One row's spaces, after the round trip through JSON, so that both ends convert alike.
        self._spaces_json = {
            name: space_json.to_json(single_space(env, name), name, self._notes)
            for name in ("action_space", "observation_space")
        }
        self._action_space, self._observation_space = (
            space_json.from_json(value, name) for name, value in self._spaces_json.items()
        )
        self._make_converters()
        self._has_seed_lists = isinstance(
            self._inner, gymnasium.vector.SyncVectorEnv | gymnasium.vector.AsyncVectorEnv
        )
        # Others ignore a mask, unless callers begin the episodes anyway.
        self._takes_mask = self._has_seed_lists or self._next_kind is None
        self._calls = ServedCalls()
        self._infos: bool | str = False
        self._seed: Any = None
        self._options: dict[str, Any] | None = None
        self._step_type = np.full(self.num_envs, _FIRST)
        self._info: Mapping[str, Any] = {}

    @property
    def info(self) -> Mapping[str, Any]:
        """The infos that the environment returned from its latest step or reset."""
        return self._info

    @property
    def properties(self) -> Mapping[str, Callable[[], Any]]:
        """The properties for a server: a mapping of keys to functions that return the values."""
        offered: dict[str, Callable[[], Any]] = {
            batches.WORLD_NUM_ENVS: lambda: self.num_envs,
            batches.WORLD_AUTORESET_MODE: lambda: self._mode.name,
            VECTOR_DESCRIPTION: self._describe,
            batches.WORLD_FORM: lambda: f"{self._form}, {self._mode.name}",
        }
        if getattr(self._environment, "render_mode", None) is not None:
            offered.update(encoded_frames(self._frames))
        return offered

    def offer_calls(
        self, properties: Properties, callable_names: Sequence[str], settable_names: Sequence[str]
    ) -> None:
        """Add the properties for the methods and attributes that clients may use; see `serve`."""
        callee = OfVector(self._environment)
        self._calls.offer(properties, callee, callable_names, settable_names, self.num_envs)

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Apply the settings of a Reset request.

        Args:
          settings: `seed`, an integer, or one for each row, int [N] (also accepted as
            `rows.seed`); `options`, a mapping or its JSON text; `reset_mask`, bool [N], the rows
            in which an episode begins; and `infos`, whether later observations include the infos
            under `EXTRAS`.

        Raises:
          ValueError: a setting has the wrong type or the wrong number of values.
        """
        others = dict(settings)
        mask = others.pop(batches.RESET_MASK, None)
        of_rows = dict(others.pop(batches.ROWS, {}))
        seeds = of_rows.pop("seed", others.pop("seed", None))
        if of_rows:
            raise ValueError(
                f"a vector environment has no setting {batches.ROWS}.{next(iter(of_rows))}; its "
                f"only setting for rows is {batches.ROWS}.seed"
            )
        if np.ndim(seeds) == 0 and seeds is not None:
            others["seed"] = seeds
            seeds = None
        arguments = reset_arguments(others)
        if ("seed" in arguments or seeds is not None) and not self._form.seeds:
            raise ValueError(
                f"setting 'seed': `reset` of {type(self._inner).__name__} accepts no seed"
            )
        if seeds is not None:
            arguments["seed"] = self._row_seeds(seeds)
        if arguments.get("infos") == OWN:
            raise ValueError(
                f"setting 'infos' is {OWN!r}, but a vector environment has one info for all rows; "
                f"expected a bool, {STACKED!r} or {BLOCKS!r}"
            )
        options = dict(arguments["options"]) if "options" in arguments else None
        if mask is not None:
            if not self._takes_mask or (self._form.ignores_masks and not np.all(mask)):
                raise ValueError(
                    f"setting {batches.RESET_MASK!r}: {type(self._inner).__name__} "
                    f"with autoreset mode {self._mode.name} cannot reset single rows; reset all "
                    "rows at once"
                )
            array = batches.checked_reset_mask(mask, self.num_envs)
            options = {**(options or {}), batches.RESET_MASK: array}
        self._seed = arguments.get("seed")
        self._options = options
        self._infos = arguments.get("infos", self._infos)

    def reset(self) -> dm_env.TimeStep:
        """Begin an episode in every row, or in the rows that a mask selects."""
        mask = (self._options or {}).get(batches.RESET_MASK)
        arguments: dict[str, Any] = {"seed": self._seed_of(mask), "options": self._options}
        self._seed = self._options = None
        # Only what was set: some libraries' environments have a `reset` without arguments.
        given = {name: value for name, value in arguments.items() if value is not None}
        observation, self._info = self._form.reset(given)
        is_first = np.ones(self.num_envs, bool) if mask is None else mask
        self._step_type = np.where(is_first, _FIRST, self._step_type)
        return dm_env.restart(self._observed(observation, self._step_type))

    def _make_converters(self) -> None:
        self._read_actions = elements.reader(self._action_space, "action", of_rows=True)
        self._write_observations = elements.writer(
            self._observation_space, OBSERVATION, self.num_envs
        )

    def step(self, action: Any) -> dm_env.TimeStep:
        """Take a step in every row."""
        try:
            actions = self._read_actions(action)
        except ProtocolError as error:  # From JSON, which encodes the actions of a Graph.
            raise RequestError.invalid(str(error)) from error
        try:
            returned = self._form.step(actions, bool(self._infos))
            observation, reward, terminated, truncated, self._info = returned
        except (TypeError, ValueError) as error:
            explain(self._environment, "step", error)
            raise
        terminated = self._flags("terminations", terminated)
        truncated = self._flags("truncations", truncated)
        if self._form.has_four:
            terminated, truncated = terminated & ~truncated, terminated & truncated
        step_type = np.where(terminated | truncated, _LAST, _MID)
        if self._next_kind is dm_env.StepType.FIRST:
            step_type[self._step_type == _LAST] = _FIRST
        self._step_type = step_type
        return dm_env.transition(
            self._numbers("rewards", reward).astype(np.float64, copy=False),
            self._observed(observation, step_type, terminated & truncated),
            np.where(terminated, 0.0, 1.0),
        )

    def action_spec(self) -> Any:
        """Return the spec of the actions [N, ...], or nested specs for a Tuple or Dict space."""
        spec = batched(elements.to_spec(self._action_space, "action"), self.num_envs)
        named(spec, "action", (batches.STEP_MASK,))  # Clients would mistake it for the mask.
        return spec

    def observation_spec(self) -> Any:
        """Return the specs of the observations [N, ...] and of each row's step type."""
        # Computed on each call, because the client may have requested infos meanwhile.
        spec = batched(elements.to_spec(self._observation_space, OBSERVATION), self.num_envs)
        infos = EXTRAS if self._infos else None
        found = observation_specs(spec, self.num_envs, infos, has_row_errors=False)
        if self._infos == BLOCKS:
            name = batches.INFO_ARRAYS
            found[name] = VariableArray((-1,), np.uint8, name)
        return found

    def reward_spec(self) -> Any:
        """Return the spec of the reward, float64 [N]."""
        return batched(super().reward_spec(), self.num_envs)

    def discount_spec(self) -> Any:
        """Return the spec of the discount, float64 [N]."""
        return batched(super().discount_spec(), self.num_envs)

    def sample_action(self) -> Any:
        """Return actions sampled from the environment's own action space."""
        space = getattr(self._environment, "single_action_space", self._action_space)
        samples = [space.sample() for _ in range(self.num_envs)]
        out: Any = create_empty_array(space, self.num_envs)
        batch = concatenate(space, samples, out)
        return elements.to_structure(self._action_space, batch, "action", self.num_envs)

    def close(self) -> None:
        """Close the environment."""
        env: Any = self._environment
        if hasattr(env, "close_extras") and not hasattr(env, "closed"):
            # `close` of gym's base class reads what its constructor sets, which Brax does not call.
            env.close_extras()
        else:
            # Some simulators have no `close`.
            getattr(env, "close", lambda: None)()

    def _observed(self, observation: Any, step_type: Any, both: Any = None) -> Any:
        try:
            value = self._write_observations(observation)
        except SpecError as error:
            raise environment_error(error, "space") from error
        if not self._infos:
            return {**named(value, OBSERVATION, ()), batches.STEP_TYPE: step_type}
        both = np.zeros(1, np.bool_) if both is None else both
        if self._infos == BLOCKS:
            infos = encoded_blocks(self._info, both)
        else:
            infos = {EXTRAS: encoded_stack(self._info, both, self._infos == STACKED)}
        return {OBSERVATION: value, **infos, batches.STEP_TYPE: step_type}

    def _numbers(self, name: str, values: Any) -> npt.NDArray[Any]:
        """Return an array [N] of numbers or bools, or raise TypeError for any other value."""
        if type(values) is np.ndarray and values.dtype.kind in "bf" and values.ndim == 1:
            array = values
        else:
            try:
                array = casting.as_array(values, name)
            except SpecError as error:
                raise self._wrong(name, values) from error
        # Some simulators have a column for the only agent of each row, or a list of that agent's.
        if array.shape in ((self.num_envs, 1), (1, self.num_envs)):
            array = array.reshape(self.num_envs)
        if array.shape != (self.num_envs,) or array.dtype.kind not in "biuf":
            raise self._wrong(name, values, array.shape)
        return array

    def _flags(self, name: str, values: Any) -> npt.NDArray[np.bool_]:
        return self._numbers(name, values).astype(np.bool_, copy=False)

    def _wrong(self, name: str, values: Any, shape: tuple[int, ...] = ()) -> TypeError:
        more = ""
        if len(shape) == 2 and self.num_envs in shape:
            # The environments of MO-Gymnasium have a space of rewards, for their objectives.
            if not hasattr(self._inner, "reward_space"):
                more = (
                    "; if these belong to several agents in each row, return their sum, or serve "
                    "the environment as a ParallelEnv of PettingZoo"
                )
            more += OBJECTIVES if name == "rewards" else ""
        return TypeError(
            f"step of {type(self._inner).__name__} returned {name} that are "
            f"{described(values)}; expected an array of {self.num_envs} numbers, one for each "
            f"row{more}"
        )

    def _row_seeds(self, seeds: Any) -> npt.NDArray[Any]:
        array = np.asarray(seeds)
        if array.shape != (self.num_envs,) or array.dtype.kind not in "iu":
            raise ValueError(
                f"setting 'seed': expected an integer, or one for each of {self.num_envs} rows, "
                f"got {array.dtype} {list(array.shape)}"
            )
        return array

    def _seed_of(self, mask: Any) -> Any:
        """Return the seeds of the rows that `mask` selects, in the form the environment accepts."""
        seeds = self._seed
        if not isinstance(seeds, np.ndarray):
            return seeds
        if self._has_seed_lists:
            return seeds.tolist()
        if mask is not None:
            seeds = seeds[mask]
        # Clients derive consecutive seeds from one, and some environments take only one.
        first = int(seeds[0])
        is_range = seeds.tolist() == list(range(first, first + len(seeds)))
        return first if is_range else seeds

    def _frames(self) -> Any:
        render: Any = self._environment.render
        # EnvPool renders a single row unless `env_ids` names them.
        if "env_ids" in inspect.signature(render).parameters:
            return render(env_ids=np.arange(self.num_envs))
        return render()

    def _describe(self) -> str:
        leaves = structures.leaves(elements.to_spec(self._observation_space, OBSERVATION))
        size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves) * self.num_envs
        # With small observations, JSON text costs less than another observation in each step.
        forms = (STACKED, BLOCKS) if size >= _LARGE_BYTES else (STACKED,)
        own = self._spaces_json, self._notes, forms
        return describe_vector(self._environment, self.num_envs, self._mode, *own)
