"""An adaptor that presents a dm_env.Environment, local or remote, as a Gymnasium environment."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dm_env
import gymnasium
import numpy as np
import numpy.typing as npt
from dm_env import specs

from dm_env_rpc_client import arguments
from dm_env_rpc_client.adaptors.gymnasium.proxy import (
    Description,
    GymnasiumProxy,
    action_reader,
    describe,
    restarted,
)
from dm_env_rpc_client.adaptors.gymnasium.spaces import from_space, spec_to_space, to_space
from dm_env_rpc_client.adaptors.gymnasium.specified import Specified
from dm_env_rpc_client.environment.base_adaptor import NO_SETTINGS, BaseAdaptor
from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
from dm_env_rpc_client.environment.made_again import is_made_again
from dm_env_rpc_client.environment.requested import AutoObservations
from dm_env_rpc_client.environment.server_location import Address
from dm_env_rpc_client.environment.worlds import make
from dm_env_rpc_client.errors import ConnectionLostError, SpecError
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.tensors import array_kinds, nesting
from dm_env_rpc_client.tensors.displays import images
from dm_env_rpc_client.tensors.displays.markup import leaf_paths
from dm_env_rpc_client.tensors.displays.spec_tables import value_range
from dm_env_rpc_client.tensors.structures import single_leaf

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dm_env_rpc_client.environment.make_options import RemoteKeywords


RENDER_FPS = 30


class GymnasiumEnv(Specified, gymnasium.Env[Any, Any]):
    """A Gymnasium environment that steps a dm_env.Environment.

    The spaces of actions and observations are derived from their specs (see
    `adaptors.gymnasium.spaces`). A structure with a single array, at any depth, is replaced by
    that array: an environment with the single action `{"paddle": int32}` has a Discrete action
    space and accepts `env.step(1)`.

    An episode counts as terminated if the server sends TERMINATED or, for a local environment, if
    the last discount is 0; otherwise it counts as truncated. `info` contains the `discount`,
    except after a reset.

    Args:
      env: the dm_env environment; `close` closes it too.
      unwrap_single: False to return a single array as a mapping with one entry.
      render_mode: "rgb_array" to have `render` return the last observed image. Any other mode
        issues a warning, and `render` returns None.
      render_observation: the flat name of the observation to render, which can be any that
        notebooks show as an image, such as a board. None for the first uint8 [height, width, 3]
        observation.
      seed_setting: the name of the reset setting for the seed; None to send no seeds.

    Raises:
      SpecError: an argument has the wrong type, there is no space for a spec, the reward is not a
        scalar, or `render_observation` is not an image.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": RENDER_FPS}  # noqa: RUF012

    def __init__(
        self,
        env: dm_env.Environment,
        *,
        unwrap_single: bool = True,
        render_mode: str | None = None,
        render_observation: str | None = None,
        seed_setting: str | None = "seed",
    ):
        arguments.flag("unwrap_single", unwrap_single)
        check_form(seed_setting, render_mode, render_observation)
        self._env = env
        self._seed_setting = seed_setting
        self._takes_settings = "settings" in inspect.signature(env.reset).parameters
        self._is_running = False
        self._last_observation: Any = None
        check_reward(env)
        self._unwrap_single = unwrap_single
        self._adopt_specs()
        of_all = images.is_rgb if render_observation is None else is_shown
        found = find_images(env.observation_spec(), of_all)
        self.metadata = {"render_modes": ["rgb_array"] if found else [], "render_fps": RENDER_FPS}
        if render_observation is not None and render_observation not in found:
            raise SpecError(
                f"observation {render_observation!r} does not exist or is not an image (such as "
                f"uint8 [height, width, 3]); image observations: {', '.join(found) or 'none'}"
            )
        if render_mode not in (None, *self.metadata["render_modes"]):
            warnings.warn(
                f"render_mode {render_mode!r} is not available, so render() returns None; "
                f"render modes: {self.metadata['render_modes']} ('rgb_array' needs an observation "
                "that is uint8 [height, width, 3])",
                stacklevel=2,
            )
            render_mode = None
        self._image_path: tuple[Any, ...] = ()
        self._image_spec: specs.Array | None = None
        if found:
            self._image_path, self._image_spec = found[render_observation or next(iter(found))]
        self.render_mode = render_mode

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copying and pickling, excluding any running episode."""
        state = dict(self.__dict__)
        if is_made_again(self._env):
            state |= {"_is_running": False, "_last_observation": None}
        return state

    @property
    def environment(self) -> dm_env.Environment:
        """The dm_env environment behind this Gymnasium environment."""
        return self._env

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode.

        Args:
          seed: sent as the setting `seed_setting` if the environment's `reset` accepts settings;
            otherwise ignored.
          options: settings of the next episode, by name.

        Returns:
          The first observation, and an empty info.

        Raises:
          SpecError: options were given but the environment accepts no settings, or the options
            changed the specs.
          Otherwise the environment's errors.
        """
        super().reset(seed=seed)
        settings = dict(options or {})
        if settings and not self._takes_settings:
            raise SpecError(f"`reset` of {self._env} accepts no settings, got options {options!r}")
        if seed is not None and self._seed_setting is not None:
            settings = {self._seed_setting: seed, **settings}
        self._is_running = False
        if settings and self._takes_settings:
            timestep = self._env.reset(settings)
            self._check_specs()
        else:
            timestep = self._env.reset()
        self._is_running = True
        return self._observe(timestep), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step.

        Args:
          action: an element of `action_space`.

        Returns:
          The observation, reward, terminated, truncated, and an info with the `discount`. If a
          restart lost the step, the episode is truncated: the observation is the last one received,
          and `restarted` in the info is True.

        Raises:
          gymnasium.error.ResetNeeded: no episode is running.
          SpecError: the action does not conform to the action spec.
          Otherwise the environment's errors.
        """
        if not self._is_running:
            raise gymnasium.error.ResetNeeded("no episode is running: call reset() first")
        wrapped = wrap(self._action_path, from_space(self._action_leaf, action, "action"))
        timestep = self._env.step(wrapped)
        try:
            self._is_running = not timestep.last()
            terminated = is_terminated(self._env, timestep)
            return (
                self._observe(timestep),
                0.0 if timestep.reward is None else float(timestep.reward),
                terminated,
                timestep.last() and not terminated,
                {**info_of(timestep.discount), **restarted(self._env)},
            )
        except BaseException as error:
            if hasattr(self._env, "_interrupted"):  # A remote one.
                self._env._interrupted(error)
            raise

    def render(self) -> npt.NDArray[np.uint8] | None:
        """Return the latest image, uint8 [height, width, 3], or None without a render mode."""
        if self.render_mode is None:
            return None
        if self._last_observation is None:
            raise gymnasium.error.ResetNeeded("there is no observation yet: call reset() first")
        image = self._last_observation
        for key in self._image_path:
            image = image[key]
        return images.rgb(np.asarray(image), *value_range(self._image_spec))

    def close(self) -> None:
        """Close the environment; a second call does nothing."""
        self._env.close()

    def _adopt_specs(self) -> None:
        self._specs = (self._env.action_spec(), self._env.observation_spec())
        action, observation = self._specs
        self._action_path, self._action_leaf = (
            single_leaf(action) if self._unwrap_single else ((), action)
        )
        self._observation_path, leaf = (
            single_leaf(observation) if self._unwrap_single else ((), observation)
        )
        self.action_space = spec_to_space(self._action_leaf, "action")
        self.observation_space = spec_to_space(leaf, "observation")

    def _check_specs(self) -> None:
        if (self._env.action_spec(), self._env.observation_spec()) != self._specs:
            raise SpecError(
                "the settings of this reset change the specs of the environment, but the spaces "
                "of a Gymnasium environment cannot change; make another environment with these "
                "settings"
            )

    def _observe(self, timestep: dm_env.TimeStep) -> Any:
        if self.render_mode is not None:
            self._last_observation = timestep.observation
        observation = timestep.observation
        for key in self._observation_path:
            observation = observation[key]
        return to_space(self.observation_space, observation)


def make_remote(
    address: Address,
    create_world_settings: Mapping[str, Any] = NO_SETTINGS,
    join_world_settings: Mapping[str, Any] = NO_SETTINGS,
    *,
    unwrap_single: bool = True,
    render_mode: str | None = None,
    render_observation: str | None = None,
    seed_setting: str | None = "seed",
    requested_observations: Sequence[str] | AutoObservations | None = None,
    nested_tensors: bool = True,
    **make_kwargs: Unpack[RemoteKeywords],
) -> GymnasiumEnv | GymnasiumProxy:
    """Make a remote environment for Gymnasium. This function is the entry point of `Remote-v0`.

    Args:
      address: the address of the server, or a server to launch, as for `make`.
      create_world_settings: settings of the CreateWorld request.
      join_world_settings: settings of the JoinWorld request.
      unwrap_single: as for `GymnasiumEnv`.
      render_mode: as for `GymnasiumEnv` or `GymnasiumProxy`.
      render_observation: as for `GymnasiumEnv`.
      seed_setting: as for `GymnasiumEnv`.
      requested_observations: as for `DmEnvAdaptor`.
      nested_tensors: as for `DmEnvAdaptor`.
      **make_kwargs: for `dm_env_rpc_client.make`.

    Returns:
      A `GymnasiumProxy` if the server has a Gymnasium environment; otherwise, or if
      `requested_observations`, `render_observation` or `nested_tensors` change the observations, a
      `GymnasiumEnv`.

    Raises:
      SpecError: `arrays` is not "numpy"; Gymnasium has its own wrappers to convert arrays.
      As `dm_env_rpc_client.make` and `GymnasiumEnv`. No world is left on the server.
    """
    arguments.flag("unwrap_single", unwrap_single)
    check_form(seed_setting, render_mode, render_observation)
    asked = make_kwargs.get("arrays", "numpy")
    array_kinds.check_names(asked, make_kwargs.get("device"))
    if asked != "numpy":
        raise SpecError(
            f"arrays={asked!r}: Remote-v0 returns NumPy arrays; to convert them, use a Gymnasium "
            "wrapper such as gymnasium.wrappers.NumpyToTorch"
        )
    keywords: dict[str, Any] = {
        **make_kwargs,
        "requested_observations": requested_observations,
        "nested_tensors": nested_tensors,
    }
    may_be_proxy = requested_observations is None and render_observation is None and nested_tensors

    def join() -> DmEnvAdaptor:
        return make(address, create_world_settings, join_world_settings, **keywords)

    env, description = join_described(join) if may_be_proxy else (join(), None)
    try:
        if description is not None:
            return GymnasiumProxy(env, description, render_mode)
        return GymnasiumEnv(
            env,
            unwrap_single=unwrap_single,
            render_mode=render_mode,
            render_observation=render_observation,
            seed_setting=seed_setting,
        )
    except BaseException:
        env.close()
        raise


def join_described(join: Callable[[], DmEnvAdaptor]) -> tuple[DmEnvAdaptor, Description | None]:
    """Join a world, and request the description of the Gymnasium environment in it.

    Args:
      join: joins the world; called again if the server ends the stream because it does not support
        the properties extension.

    Returns:
      The environment and its description. The description is None if the server does not describe
      a Gymnasium environment.

    Raises:
      As `join` and `describe`. No world is left on the server.
    """
    env = join()
    try:
        return env, describe(env)
    except ConnectionLostError:
        env.close()
        return join(), None
    except BaseException:
        env.close()
        raise


def check_form(
    seed_setting: str | None, render_mode: str | None, render_observation: str | None = None
) -> None:
    """Raise SpecError if an argument is not a str. The arguments are those of `GymnasiumEnv`."""
    arguments.text("seed_setting", seed_setting, none="None to send no seeds")
    arguments.text("render_mode", render_mode, none="None")
    arguments.text("render_observation", render_observation, none="None for the first image")


def is_terminated(env: dm_env.Environment, timestep: dm_env.TimeStep) -> bool:
    """Whether an environment's latest TimeStep terminated its episode rather than truncating it."""
    if not timestep.last():
        return False
    if isinstance(env, BaseAdaptor):
        return env.state is State.TERMINATED
    return not np.any(timestep.discount)


def info_of(discount: Any) -> dict[str, Any]:
    """Return the info of a step, which contains its discount, or {} for a FIRST step."""
    if discount is None:
        return {}
    array = np.asarray(discount)
    return {"discount": array if array.ndim else float(array)}


def check_reward(environment: dm_env.Environment) -> None:
    """Raise SpecError unless the rewards of an environment are numbers, as Gymnasium requires."""
    spec = environment.reward_spec()
    observations = environment.observation_spec()
    if isinstance(observations, Mapping) and batches.STEP_TYPE in observations and spec.shape:
        raise SpecError(
            f"this world is a batch of {spec.shape[0]} rows, not one Gymnasium environment; "
            "use `make`, which returns an environment whose actions and observations have one row "
            "per environment"
        )
    check_reward_spec(spec)


def check_reward_spec(spec: Any) -> None:
    """Raise SpecError unless a reward spec describes a single number."""
    if not isinstance(spec, specs.Array) or spec.shape != () or spec.dtype.kind not in "biuf":
        raise SpecError(
            f"rewards are numbers in Gymnasium, but this environment's reward has spec {spec}; "
            "override `reward` and `reward_spec` in a subclass of DmEnvAdaptor, and pass the "
            "subclass as adaptor_class"
        )


def element_for(env: GymnasiumEnv | GymnasiumProxy, action: Any) -> Any:
    """Convert an action of `env.environment` to an element of `env.action_space`."""
    if isinstance(env, GymnasiumProxy):
        return action_reader(env.action_space)(action)
    for key in env._action_path:
        action = action[key]
    return to_space(env.action_space, action)


def find_images(
    structure: Any, are_images: Callable[..., bool] = images.is_rgb
) -> dict[str, tuple[tuple[Any, ...], specs.Array]]:
    """Return the path of keys and the spec of each image observation, by flat name.

    Args:
      structure: a structure of specs.
      are_images: a predicate that receives the shape and the dtype of an array.
    """
    return {
        nesting.SEPARATOR.join(map(str, path)): (path, spec)
        for path, spec in leaf_paths(structure)
        if are_images(tuple(spec.shape), spec.dtype)
    }


def is_shown(shape: tuple[int, ...], dtype: npt.DTypeLike) -> bool:
    """Whether `GymnasiumEnv` can render arrays with the shape and dtype of a spec."""
    return images.is_rgb(shape, dtype) or images.is_image(shape, dtype)


def largest_image(structure: Any) -> str | None:
    """Return the flat name of the observation that is best suited for display.

    Args:
      structure: a structure of specs.

    Returns:
      The name of the largest uint8 [height, width, 3] observation, otherwise of the largest
      observation that notebooks show as an image, such as a board. None if no observation is an
      image.
    """
    for are_images in (images.is_rgb, is_shown):
        found = find_images(structure, are_images)
        if found:
            return max(found, key=lambda name: abs(int(np.prod(found[name][1].shape))))
    return None


def wrap(path: tuple[Any, ...], value: Any) -> Any:
    """Wrap a value in nested mappings along a path of keys found by `single_leaf`."""
    for key in reversed(path):
        value = {key: value}
    return value
