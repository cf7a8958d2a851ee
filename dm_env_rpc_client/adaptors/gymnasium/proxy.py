"""A local proxy for a Gymnasium environment on a server."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import dm_env
import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client.adaptors.gymnasium import elements, value_json
from dm_env_rpc_client.adaptors.gymnasium.calls.remote import RemoteNames
from dm_env_rpc_client.adaptors.gymnasium.info_observation import (
    INFOS,
    OWN,
    STACKED,
    Extras,
    extras_of,
)
from dm_env_rpc_client.adaptors.gymnasium.space_json import from_json
from dm_env_rpc_client.adaptors.gymnasium.spaces import Room
from dm_env_rpc_client.adaptors.gymnasium.specified import Specified
from dm_env_rpc_client.adaptors.gymnasium.to_dm_env import DESCRIPTION, FRAME, OBSERVATION
from dm_env_rpc_client.adaptors.gymnasium.unsent import Given
from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
from dm_env_rpc_client.errors import DmEnvRpcError, ProtocolError
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.system.foreign_environments import described
from dm_env_rpc_client.tensors.memory_limits import DEFAULT

_LAST = dm_env.StepType.LAST  # A global is faster to look up than an enum member.

_NO_VALUES: Mapping[str, Any] = {}

_CALLABLE = (
    "; to use an attribute of the remote environment, allow its name on the server with "
    "serve(callable_names=...)"
)


class Description(NamedTuple):
    """A server's description of a Gymnasium environment.

    Attributes:
      action_space: the action space of the environment.
      observation_space: the observation space of the environment.
      metadata: the metadata of the environment.
      render_mode: the render mode of the environment.
      max_episode_steps: the time limit in the environment's spec, in steps; None for no limit.
      reward_range: the reward range of the environment; None if undefined.
      notes: notes on spaces of other libraries, each replaced by the nearest Gymnasium space.
      autoreset_mode: the autoreset mode of a batch; None for a single environment.
      forms: the forms of infos that the server supports in addition to the original form; see
        `info_observation`.
    """

    action_space: spaces.Space[Any]
    observation_space: spaces.Space[Any]
    metadata: dict[str, Any]
    render_mode: str | None
    max_episode_steps: int | None
    reward_range: tuple[float, float] | None
    notes: Sequence[str]
    autoreset_mode: str | None = None
    forms: Collection[str] = ()


class GymnasiumProxy(Specified, gymnasium.Env[Any, Any]):
    """A remote Gymnasium environment, as returned by `make_remote`.

    Spaces, observations, rewards, flags, infos, metadata and frames are those of the environment
    on the server, and its `reset` receives `seed` and `options`. An observed element of a Discrete
    is an `int`. The environment receives actions of the type that its own action space samples.
    The names allowed by `serve(callable_names=..., settable_names=...)` are attributes of this
    object.

    Args:
      env: the adaptor, joined to a world with a Gymnasium environment; `close` closes it too.
      description: the result of `describe(env)`.
      render_mode: the render mode with which the server recreates the environment; None to keep
        the environment unchanged. If the server does not support the mode, a warning is issued and
        `render` returns None.

    Attributes:
      environment: `env`.
      notes: as in `Description`.
    """

    def __init__(self, env: DmEnvAdaptor, description: Description, render_mode: str | None = None):
        self.environment = env
        self._description = description
        self.notes = description.notes
        self.action_space = description.action_space
        self.observation_space = description.observation_space
        if description.reward_range is not None:
            self.reward_range = description.reward_range
        self._max_episode_steps = description.max_episode_steps
        self._make_converters()
        self._is_running = False
        self._names = RemoteNames(lambda: self.environment.connection)
        self.render_mode = begin([env], description, render_mode)
        self.metadata = metadata_of(description, self.render_mode)
        env.on_restart(begin_again(description, self.render_mode))

    def _make_converters(self) -> None:
        self._converted = self.action_space, self.observation_space
        self._wire_action = action_writer(self.action_space)
        self._read_observation = observation_reader(self.observation_space)

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = self.environment, self._description, self.render_mode
        return type(self), arguments, {"_spec": self._spec}

    def __getattr__(self, name: str) -> Any:
        """Return an allowed remote attribute, or a function that calls an allowed method."""
        names = None if name.startswith("_") else self.__dict__.get("_names")
        if names is not None:
            with contextlib.suppress(AttributeError):
                return names.get(name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{_CALLABLE}")

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute on the server if the server allows it, otherwise on the local proxy."""
        if name not in self.__dict__ and not name.startswith("_") and self._names.set(name, value):
            return True
        return super().set_wrapper_attr(name, value, force=force)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode.

        Args:
          seed: passed to the environment's own `reset`.
          options: passed to the environment's own `reset`; see `adaptors.gymnasium.value_json` for
            the types that are preserved.

        Returns:
          The observation and the info.

        Raises:
          SpecError: an option cannot be sent; nothing was sent.
          DmEnvRpcError: the environment raised an error, which the message quotes.
          Otherwise as `DmEnvAdaptor.step`.
        """
        super().reset(seed=seed)
        settings = reset_settings(seed, options)
        self._is_running = False
        timestep = self.environment.reset(settings)
        try:
            self._is_running = True
            observation = timestep.observation
            return self._read_observation(observation), extras_of(observation).info
        except BaseException as error:
            self.environment._interrupted(error)
            raise

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step.

        Args:
          action: an element of `action_space`.

        Returns:
          The observation, reward, terminated, truncated and info. If a restart lost the step, the
          episode is truncated: the observation is the last one received, and the info is
          `{"restarted": True}`.

        Raises:
          gymnasium.error.ResetNeeded: no episode is running.
          SpecError: the action does not conform to the action space; nothing was sent.
          DmEnvRpcError: the environment raised an error, which the message quotes.
          Otherwise as `DmEnvAdaptor.step`.
        """
        if not self._is_running:
            raise gymnasium.error.ResetNeeded("no episode is running: call reset() first")
        action_space, observation_space = self._converted
        if self.action_space is not action_space or self.observation_space is not observation_space:
            self._make_converters()  # A caller has assigned another space.
        timestep = self.environment.step(self._wire_action(action))
        try:
            is_last = timestep.step_type is _LAST
            self._is_running = not is_last
            lost = restarted(self.environment) if is_last else None
            extras = Extras(lost, False) if lost else extras_of(timestep.observation)
            is_terminated = is_last and self.environment.state is State.TERMINATED
            return (
                self._read_observation(timestep.observation),
                # None if the server begins an episode instead, because another connection has
                # reset the world.
                0.0 if timestep.reward is None else float(timestep.reward),
                is_terminated,
                extras.is_truncated or (is_last and not is_terminated),
                extras.info,
            )
        except BaseException as error:
            self.environment._interrupted(error)
            raise

    def render(self) -> Any:
        """Request and return the current frame, or return None if there is no render mode."""
        if self.render_mode is None:
            return None
        return read_frame(self.environment)

    def close(self) -> None:
        """Close the environment; a second call does nothing."""
        self.environment.close()


def describe(env: DmEnvAdaptor, key: str = DESCRIPTION) -> Description | None:
    """Request the description of the environment in a world.

    Args:
      env: the adaptor, joined to the world.
      key: the property to read; for a batch, `VECTOR_DESCRIPTION`.

    Returns:
      The description; None if the server does not describe a Gymnasium environment.

    Raises:
      ProtocolError: the answer is invalid or has an unsupported version.
      ConnectionLostError: the server ended the connection because it does not know the request.
      Otherwise as `Connection.send`.
    """
    try:
        text = PropertiesExtension(env.connection).read(key)
    except DmEnvRpcError:
        return None
    if not isinstance(text, str):
        return None
    where = f"property {key!r}"
    value = value_json.decode_description(text, where)
    room = Room(env.connection.limits or DEFAULT)
    try:
        limit, notes = value["max_episode_steps"], value["notes"]
        mode = value.get("autoreset_mode")
        return Description(
            from_json(value["action_space"], f"{where}: action_space", room),
            from_json(value["observation_space"], f"{where}: observation_space", room),
            dict(value_json.from_jsonable(value["metadata"], where)),
            value["render_mode"],
            None if limit is None else int(limit),
            value_json.from_jsonable(value.get("reward_range"), where),
            [str(note) for note in notes],
            None if mode is None else AutoresetMode(mode).value,
            [str(form) for form in value.get(INFOS, ())],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"{where}: {type(error).__name__}: {error}") from error


def begin(
    envs: Sequence[DmEnvAdaptor],
    description: Description,
    render_mode: str | None,
    form: str = OWN,
) -> str | None:
    """Ask a server, or several, to send infos and to render in a given mode.

    Args:
      envs: adaptors that are joined to worlds with Gymnasium environments and have not started a
        sequence.
      description: the result of `describe` for one of them.
      render_mode: the render mode; None to keep the environment unchanged.
      form: the preferred form of the infos; a server that does not support the form uses an older
        one.

    Returns:
      The render mode, or None, after a warning, if the server does not support the mode.

    Raises:
      As `DmEnvAdaptor.reset`.
    """
    infos = _infos(description, form)
    if render_mode in (None, description.render_mode):
        _ask(envs, infos)
        return render_mode
    modes = description.metadata.get("render_modes", [])
    refusal = f"its modes are {modes}; 'human' would open a window there"
    # For "rgb_array_list", `gymnasium.make` collects the frames of mode "rgb_array".
    single = render_mode.removesuffix("_list")
    if (render_mode in modes or single in modes) and single != "human":
        try:
            _ask(envs, {**infos, "render_mode": render_mode})
            return render_mode
        except DmEnvRpcError as error:
            refusal = str(error)
    warnings.warn(
        f"the server at {envs[0].connection.address} does not render in mode {render_mode!r}, so "
        f"render() returns None: {refusal}",
        stacklevel=4,
    )
    _ask(envs, infos)
    return None


def metadata_of(description: Description, render_mode: str | None) -> dict[str, Any]:
    """Return the metadata of an environment, including its current render mode.

    Environments do not declare list modes such as "rgb_array_list", because `gymnasium.make` adds
    these modes with a wrapper.
    """
    metadata = dict(description.metadata)
    modes = list(metadata.get("render_modes", []))
    if render_mode is not None and render_mode not in modes:
        metadata["render_modes"] = [*modes, render_mode]
    return metadata


def begin_again(
    description: Description, render_mode: str | None, form: str = OWN
) -> Callable[[DmEnvAdaptor], object]:
    """Return a callback that sends the settings of `begin` again after a restart."""
    settings = _infos(description, form)
    if render_mode not in (None, description.render_mode):
        settings["render_mode"] = render_mode
    return lambda env: _ask([env], settings)


def restarted(env: dm_env.Environment) -> dict[str, Any]:
    """Return the latest step's info, which is empty unless the step was lost in a restart."""
    is_lost = isinstance(env, DmEnvAdaptor) and env.interruption is not None
    return {"restarted": True} if is_lost else {}


def read_frame(env: DmEnvAdaptor) -> Any:
    """Return the current frame of a Gymnasium environment.

    Args:
      env: the adaptor, joined to a world for which `begin` has set a render mode.

    Raises:
      As `PropertyAccess.read`.
    """
    frame = PropertiesExtension(env.connection).read(FRAME)
    return value_json.decode(frame, FRAME) if isinstance(frame, str) else frame


def read_frames(env: DmEnvAdaptor, count: int) -> list[Any]:
    """Return the current frame of each row of a batched world.

    Args:
      env: the adaptor, joined to a world for which `begin` has set a render mode.
      count: the number of rows.

    Raises:
      ProtocolError: the answer is not a sequence of `count` frames. Otherwise as
        `PropertyAccess.read`.
    """
    frames: Any = read_frame(env)
    if not isinstance(frames, list | tuple | np.ndarray) or getattr(frames, "ndim", 1) == 0:
        raise ProtocolError(f"property {FRAME!r}: expected {count} frames, got {described(frames)}")
    if len(frames) != count:
        raise ProtocolError(f"property {FRAME!r}: expected {count} frames, got {len(frames)}")
    return list(frames)


def observation_reader(
    space: spaces.Space[Any], as_sampled: bool = False
) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function that converts nested observations into elements of a space.

    Args:
      space: the space.
      as_sampled: as for `elements.reader`.
    """
    read = elements.reader(space, "observation", as_sampled)
    return lambda observation: read(observation.get(OBSERVATION, _NO_VALUES))


def reset_settings(seed: int | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Convert the `seed` and `options` of `gymnasium.Env.reset` to the settings of a Reset.

    Raises:
      SpecError: an option cannot be sent.
    """
    settings: dict[str, Any] = {}
    if seed is not None:
        settings["seed"] = int(seed)
    if options is not None:
        settings["options"] = value_json.encode(options, where=Given("options"))
    return settings


def action_writer(space: spaces.Space[Any]) -> Callable[[Any], dict[str, Any]]:
    """Return a function that converts elements of `space` into mappings of names to values.

    The returned function raises SpecError for an element that does not conform.
    """
    write = elements.writer(space, "action")
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return lambda action: elements.by_name(write(action))
    if not isinstance(space, spaces.Discrete):
        return lambda action: {"action": write(action)}
    limits = np.iinfo(space.dtype)
    low, high = int(limits.min), int(limits.max)

    def write_integer(action: Any) -> dict[str, Any]:
        # Fast path for most actions: conversion to an array takes six more calls.
        if type(action) is int and low <= action <= high:
            return {"action": action}
        return {"action": write(action)}

    return write_integer


def action_reader(space: spaces.Space[Any]) -> Callable[[Mapping[str, Any]], Any]:
    """Return the inverse of `action_writer`, which converts mappings into elements of `space`."""
    read = elements.reader(space, "action", as_sampled=True)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return read
    return lambda action: read(action["action"])


def _infos(description: Description, form: str) -> dict[str, Any]:
    """Return the settings that request infos."""
    known = [each for each in (form, STACKED) if each in description.forms]
    return {INFOS: known[0] if known else True}


def _ask(envs: Sequence[DmEnvAdaptor], settings: Mapping[str, Any]) -> None:
    """Send settings for the next sequence, and adopt the specs that result from them."""
    # All are sent before the first answer is awaited: one round trip.
    started = [env._start_reset(settings) for env in envs]
    failure: DmEnvRpcError | None = None
    for env, reset in zip(envs, started, strict=True):
        try:
            env._finish_reset(reset)
        except DmEnvRpcError as error:
            failure = failure or error
    if failure is not None:
        raise failure
