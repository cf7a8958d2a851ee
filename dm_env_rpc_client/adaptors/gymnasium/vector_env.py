"""A gymnasium.vector.VectorEnv that steps several remote environments."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import dm_env
import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from dm_env_rpc_client import arguments
from dm_env_rpc_client.adaptors.gymnasium import elements
from dm_env_rpc_client.adaptors.gymnasium.calls.remote import RemoteCalls
from dm_env_rpc_client.adaptors.gymnasium.episode_rows import EpisodeRows, Results
from dm_env_rpc_client.adaptors.gymnasium.from_dm_env import check_form, check_reward_spec
from dm_env_rpc_client.adaptors.gymnasium.info_observation import BLOCKS, EXTRAS, OWN
from dm_env_rpc_client.adaptors.gymnasium.proxy import (
    Description,
    begin,
    begin_again,
    describe,
    metadata_of,
    read_frame,
    read_frames,
    reset_settings,
)
from dm_env_rpc_client.adaptors.gymnasium.row_spaces import OwnSpaces, RowSpaces, SpecSpaces
from dm_env_rpc_client.adaptors.gymnasium.specified import Specified
from dm_env_rpc_client.adaptors.gymnasium.to_dm_env import DESCRIPTION
from dm_env_rpc_client.adaptors.gymnasium.vector_description import (
    VECTOR_DESCRIPTION,
    checked_mode,
)
from dm_env_rpc_client.environment.base_adaptor import NO_SETTINGS
from dm_env_rpc_client.environment.batched import check_ids
from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
from dm_env_rpc_client.environment.made_again import MadeByArguments
from dm_env_rpc_client.environment.many.open_rows import AnyWorlds, described, open_worlds
from dm_env_rpc_client.environment.many.pool_servers import Addresses
from dm_env_rpc_client.environment.many.row_settings import Settings
from dm_env_rpc_client.environment.many.row_worlds import Result
from dm_env_rpc_client.environment.many.rows import RowSpecs
from dm_env_rpc_client.errors import ConnectionLostError, SpecError
from dm_env_rpc_client.protocol import autoreset, batches
from dm_env_rpc_client.system.secrets import hidden

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from dm_env_rpc_client.environment.make_options import BatchKeywords


Array: TypeAlias = npt.NDArray[Any]


class RemoteVectorEnv(
    MadeByArguments, RemoteCalls, Specified, gymnasium.vector.VectorEnv[Any, Any, Array]
):
    """A vector environment that steps N remote environments together from one thread.

    The spaces are those of `GymnasiumEnv`, batched as in Gymnasium. An episode is terminated if the
    server sends TERMINATED and truncated if it sends INTERRUPTED. `info["discount"]` is float64
    [N], with the mask `info["_discount"]`: a step that begins an episode has no discount.

    If the servers host Gymnasium environments, spaces, flags, infos and frames are those of the
    served environments, as with `GymnasiumProxy`, and these environments receive seeds and options.

    `step` waits for all environments. With `send` and `recv`, fast environments do not wait for
    slow environments: `send` starts steps, and `recv` returns their results as the answers arrive.

    If some environments fail, the error is raised after the answers of all others have been read.

    Args:
      address: one address, or several, to which the environments are assigned in turn. An address
        may be a server to launch, as for `make`: a single server serves all environments; each
        server in a list is launched separately.
      num_envs: the number of environments, N; None for one at each address, or for all rows of a
        world that is itself a batch, such as a vector environment.
      create_world_settings: settings with which the world of each environment is created: one
        mapping for all, one for each, or a function of an environment's index.
      join_world_settings: settings with which each world is joined, in the same forms.
      autoreset_mode: None for the mode of the vector environment at the server or, if there is
        none, `NEXT_STEP`. `NEXT_STEP`: the step after the end of an episode ignores its action and
        begins the next, as in dm_env. `SAME_STEP`: the step that ends an episode also begins the
        next one; the last observation and info of the ended episode are `info["final_obs"]` and
        `info["final_info"]`. `DISABLED`: episodes begin only with `reset` and its option
        `reset_mask`.
      copy: False to return the same observation arrays in every step, which the next step
        overwrites.
      unwrap_single: False to leave a single action or observation in a mapping with one entry.
      seed_setting: the name of the reset setting for the seed; None to send no seeds.
      render_mode: for served Gymnasium environments, as for `GymnasiumProxy`.
      num_batches: as for `BatchedEnvironment`; 0 for one stream per environment.
      **make_kwargs: for `dm_env_rpc_client.make`, such as `request_timeout`,
        `requested_observations` or `restart`. With `restart`, the episode of a lost environment is
        truncated, with the last observation and `info["restarted"]`.

    Raises:
      SpecError: an argument has the wrong type or is out of range, and nothing was sent or
        started; or the environments have different specs, or there is no space for a spec.
      EnvironmentsFailedError: some environments could not be opened. No world is left on the
        servers.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": [],
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    _form = BLOCKS
    """The form in which batches send infos; see `info_observation`. Environments with separate
    streams use `OWN`."""

    def __init__(
        self,
        address: Addresses,
        num_envs: int | None = None,
        create_world_settings: Settings = NO_SETTINGS,
        join_world_settings: Settings = NO_SETTINGS,
        *,
        autoreset_mode: AutoresetMode | str | None = None,
        copy: bool = True,
        unwrap_single: bool = True,
        seed_setting: str | None = "seed",
        render_mode: str | None = None,
        num_batches: int | None = None,
        **make_kwargs: Unpack[BatchKeywords],
    ):
        super().__init__()
        wish = checked_mode(autoreset_mode)
        self._mode = wish or AutoresetMode.NEXT_STEP
        self.metadata = {**self.metadata, "autoreset_mode": self._mode}
        self._copy = arguments.flag("copy", copy)
        self._unwrap_single = arguments.flag("unwrap_single", unwrap_single)
        self._seed_setting = seed_setting
        check_form(seed_setting, render_mode)
        self._open = functools.partial(
            open_worlds,
            address,
            num_envs,
            create_world_settings,
            join_world_settings,
            num_batches=num_batches,
            world_settings={} if wish is None else {batches.AUTORESET_MODE: wish.name},
            **hidden(make_kwargs),
        )
        self._worlds: AnyWorlds = self._open()
        self.render_mode = None
        try:
            self._description = (
                None if "requested_observations" in make_kwargs else self._describe(render_mode)
            )
            if self._description is None and render_mode is not None:
                warnings.warn(
                    f"render_mode {render_mode!r} is not available, so render() returns None; "
                    "only batches of Gymnasium environments at a server render",
                    stacklevel=2,
                )
            self._adopt_mode(wish)
            self._read_specs()
        except BaseException:
            self._worlds.close()
            raise

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every environment, or in some of them.

        Args:
          seed: sent as the setting `seed_setting`: a sequence contains one seed for each
            environment; a number is the first of N consecutive seeds.
          options: settings of the next episodes, by name. With `reset_mask`, bool [N], only the
            selected environments are reset.

        Returns:
          The observations [N, ...], unchanged for environments that were not reset, and the
          infos of Gymnasium environments that were reset.

        Raises:
          SpecError: a setting cannot be sent or changes the specs, or the mask or the number of
            seeds is wrong.
          gymnasium.error.ResetNeeded: the first reset does not include all environments.
          EnvironmentsFailedError: some failed.
        """
        each = self._settings_of(seed, options)
        rows = self._rows
        return self._reset(each, lambda _: (rows.elements(None), rows.first_infos(list(each))))

    def _reset(
        self, each: Mapping[int, Mapping[str, Any]], results: Callable[[None], Result]
    ) -> Result:
        """Begin the next episodes, and return what `results` reads from the rows."""
        worlds, rows = self._worlds, self._rows

        def adopt(may_differ: bool) -> None:
            rows.forget(each)
            if may_differ and worlds.specs() != self._spaces.specs:
                raise SpecError(
                    "the specs of the environments have changed, but the spaces of a Gymnasium "
                    "environment cannot change; create another environment with these settings"
                )

        return worlds.exchange(results, worlds.reset, each, rows, adopt)

    def _settings_of(
        self, seed: int | Sequence[int | None] | None, options: Mapping[str, Any] | None
    ) -> dict[int, Mapping[str, Any]]:
        """Return the settings for the next episode of each environment that is reset."""
        settings = dict(options or {})
        mask = settings.pop(batches.RESET_MASK, None)
        if mask is None:
            mask = np.ones(self.num_envs, np.bool_)
        mask = batches.checked_reset_mask(mask, self.num_envs)
        if not np.all(mask | self._rows.has_begun):
            raise gymnasium.error.ResetNeeded("the first reset must include all environments")
        ids = np.flatnonzero(mask).tolist()
        seeds = self._seeds(seed)
        each: dict[int, Mapping[str, Any]] = {
            index: self._reset_settings(seeds[index], settings, options is not None)
            for index in ids
        }
        self._rows.begin()
        return each

    def step(self, actions: Any) -> Results:
        """Step every environment and wait for all of them.

        Args:
          actions: an element of `action_space`.

        Returns:
          Observations [N, ...], rewards float64 [N], terminations bool [N], truncations bool
          [N] and infos.

        Raises:
          SpecError: an action does not conform to its space; nothing was sent to any environment.
          gymnasium.error.ResetNeeded: an environment was never reset, or its episode has ended
            and autoreset is disabled.
          EnvironmentsFailedError: some environments failed; the others have completed their step.
        """
        idle = self._idle(range(self.num_envs))
        by_name = self._spaces.actions(actions, self.num_envs)
        worlds, rows = self._worlds, self._rows
        return worlds.exchange(rows.results, worlds.step, by_name, rows, idle)

    def send(self, actions: Any, env_ids: Sequence[int] | Array | None = None) -> None:
        """Step some environments without waiting for them.

        Args:
          actions: one action for each of `env_ids`, batched as in `action_space`.
          env_ids: the indices of M environments without a pending step; None for all. The rows of a
            batch step together, so only whole batches can be selected (see `num_batches`).

        Raises:
          As `step`.
        """
        ids = check_ids(range(self.num_envs) if env_ids is None else env_ids, self.num_envs)
        idle = self._idle(ids)
        self._worlds.send(self._spaces.actions(actions, len(ids)), ids, idle)

    def recv(
        self, min_envs: int = 1, max_envs: int | None = None
    ) -> tuple[Any, Array, Array, Array, dict[str, Any], Array]:
        """Wait for steps that `send` started.

        Args:
          min_envs: the number of environments to wait for.
          max_envs: the maximum number of environments to return, in the order of arrival; None for
            all that have arrived by then.

        Returns:
          The results of `step` for M environments, and their indices, int64 [M].

        Raises:
          SpecError: fewer than `min_envs` environments have a pending step.
          EnvironmentsFailedError: some environments failed. The results of the others can still be
            received.
        """
        worlds, rows = self._worlds, self._rows
        return worlds.exchange(
            lambda ids: (*rows.results(ids), ids), worlds.receive, min_envs, max_envs, rows
        )

    def render(self) -> tuple[Any, ...] | None:
        """Return the current frame of each environment, or None if there is no render mode."""
        if self.render_mode is None:
            return None
        worlds = self._worlds
        frames: list[Any] = [None] * self.num_envs
        for environment, rows in zip(worlds.pool.environments, worlds.groups, strict=True):
            own = (
                read_frames(environment, len(rows))
                if worlds.is_batched
                else [read_frame(environment)]
            )
            for row, frame in zip(rows, own, strict=True):
                frames[row] = frame
        return tuple(frames)

    @property
    def restarts(self) -> int:
        """The number of environment restarts; always 0 unless `restart` is enabled."""
        return self._worlds.restarts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return self._described(type(self).__name__)

    def _described(self, name: str) -> str:
        # As specs, because a Dict or Tuple has no dtype or shape to show.
        action = elements.to_spec(self.single_action_space, "action")
        observation = elements.to_spec(self.single_observation_space, "observation")
        return described(name, self._worlds, action, observation)

    def close_extras(self, **kwargs: Any) -> None:
        """Leave and destroy all worlds, and close the connections, without raising errors."""
        # Gymnasium 1.1 also calls this for an environment whose constructor failed.
        if hasattr(self, "_worlds"):
            self._worlds.close()

    def _describe(self, render_mode: str | None) -> Description | None:
        """Request a description and, if there is one, also infos and a render mode."""
        worlds = self._worlds
        name = VECTOR_DESCRIPTION if worlds.is_batched else DESCRIPTION
        try:
            description = describe(worlds.pool.environments[0], name)
        except ConnectionLostError:
            # Some servers end a stream on an unknown extension.
            self._worlds.close()
            self._worlds = self._open()
            return None
        if description is None:
            return None
        form = self._form if worlds.is_batched else OWN
        environments = worlds.pool.environments
        self.render_mode = begin(environments, description, render_mode, form)
        for environment in environments:
            environment.on_restart(begin_again(description, self.render_mode, form))
        worlds.pool.check_specs()
        self.metadata = metadata_of(description, self.render_mode)
        return description

    def _adopt_mode(self, wish: AutoresetMode | None) -> None:
        """Adopt the server's autoreset mode, or raise SpecError if another mode was requested."""
        own = None if self._description is None else self._description.autoreset_mode
        if own is not None:
            self._mode = AutoresetMode(own)
            if self._mode is not (wish or self._mode):
                raise SpecError(
                    f"the vector environment on the server has the autoreset mode "
                    f"{self._mode.name}, not {wish}; create it on the server with the requested "
                    "mode"
                )
            next_kind = autoreset.next_kind(self._mode.name)
            self._worlds.follows_at_once = next_kind is dm_env.StepType.MID
        self.metadata = {**self.metadata, "autoreset_mode": self._mode}
        # Gymnasium's own vector environments have it, and other code reads it.
        self.autoreset_mode = self._mode

    def _read_specs(self) -> None:
        worlds = self._worlds
        own = worlds.specs()
        self.num_envs = count = worlds.num_envs
        check_reward_spec(own.reward)
        self._spaces: RowSpaces
        if self._description is None:
            self._spaces = SpecSpaces(own, self._unwrap_single)
        else:
            if worlds.is_batched:
                _check_batch(worlds.pool.environments[0], own)
            self._spaces = OwnSpaces(
                self._description.action_space, self._description.observation_space, own
            )
        self.single_action_space = self._spaces.action_space
        self.action_space = batch_space(self.single_action_space, count)
        self.single_observation_space = self._spaces.observation_space
        self.observation_space = batch_space(self.single_observation_space, count)
        self._rows = EpisodeRows(
            worlds, self._spaces, self._mode, self._copy, self._description is not None
        )

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            super().reset(seed=int(seed))
            return [int(seed) + index for index in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise SpecError(f"expected {self.num_envs} seeds, got {len(seed)}")
        return seed

    def _idle(self, ids: Sequence[int]) -> set[int]:
        """Return the environments in which the next step begins an episode."""
        self._worlds.check_idle(ids)
        idle: set[int] = set()
        never: list[int] = []
        if not self._rows.begin():
            idle = self._worlds.idle(ids)
            if not self._rows.has_begun.all():
                never = [index for index in ids if not self._rows.has_begun[index]]
            self._rows.forget(ids)
        if never or (idle and autoreset.next_kind(self._mode.name) is None):
            raise gymnasium.error.ResetNeeded(
                f"no episode is running in environments {never or sorted(idle)}: call reset(), "
                "or reset only these environments with the option reset_mask"
            )
        return idle

    def _reset_settings(
        self, seed: int | None, settings: Mapping[str, Any], has_options: bool
    ) -> Mapping[str, Any]:
        if self._description is not None:
            return reset_settings(seed, settings if has_options else None)
        if seed is None or self._seed_setting is None:
            return settings
        return {self._seed_setting: seed, **settings}


def _check_batch(world: DmEnvAdaptor, specs: RowSpecs) -> None:
    """Raise SpecError if a batch does not match its Gymnasium description.

    Args:
      world: the batch.
      specs: the specs of one row.
    """
    if EXTRAS not in world.observation_spec():
        raise SpecError(
            f"world {world.world_name!r} has the property {VECTOR_DESCRIPTION!r}, but not the "
            f"requested observation {EXTRAS!r}"
        )
    if specs.discount.shape:
        raise SpecError(
            f"observation 'discount' of world {world.world_name!r} has the shape "
            f"{list(specs.discount.shape)} in each row; expected a single number, as for "
            "Gymnasium environments"
        )
