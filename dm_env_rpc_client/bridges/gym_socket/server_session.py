"""A client's session, which maps packets to answers on the server without any socket I/O.

The protocol has error answers for only a few packets. After an error that it cannot report, such
as an action that does not fit its space, the session raises an exception and its connection ends:
any answer would describe a step that never happened.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from dm_env import specs
from gymnasium import spaces

from dm_env_rpc_client import arguments
from dm_env_rpc_client.adaptors.gymnasium import elements
from dm_env_rpc_client.adaptors.gymnasium import space_json as gymnasium_json
from dm_env_rpc_client.adaptors.gymnasium.returns import as_reward, begun, explain
from dm_env_rpc_client.bridges.gym_socket import monitor, packets, space_json
from dm_env_rpc_client.bridges.gym_socket.hosted_environment import HostedDmEnv, as_hosted
from dm_env_rpc_client.bridges.gym_socket.packets import Limits
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors import bounded_parsing, structures

EnvironmentFactory = Callable[[], Any]
"""A factory that makes a dm_env.Environment or a gymnasium.Env."""

ConfigureHandler = Callable[[gymnasium.Env[Any, Any], Any], None]
WrapHandler = Callable[[gymnasium.Env[Any, Any], str, Any], Any]
"""Returns a gymnasium.Env or a dm_env.Environment."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Options for serving; see the arguments of `serve`.

    Raises:
      SpecError: an option has the wrong type or is out of range.
    """

    dialect: packets.Dialect = "first"
    processes: bool = False
    max_connections: int = 64
    limits: Limits = dataclasses.field(default_factory=Limits)
    handshake_timeout: float | None = 5.0
    idle_timeout: float | None = 600.0
    monitor_directory: pathlib.Path | None = None
    configure_universe: ConfigureHandler | None = None
    wrap_universe: WrapHandler | None = None

    def __post_init__(self) -> None:
        packets.check_dialect(self.dialect)
        arguments.flag("processes", self.processes)
        count = arguments.count("max_connections", self.max_connections)
        object.__setattr__(self, "max_connections", count)
        for name in ("handshake_timeout", "idle_timeout"):
            seconds = arguments.seconds(name, getattr(self, name), none=arguments.NO_LIMIT)
            object.__setattr__(self, name, seconds)
        for name in ("configure_universe", "wrap_universe"):
            none = "None to refuse the packet"
            arguments.function(name, getattr(self, name), none=none)


_SUCCESS = packets.encode_error("")


class RefusedPacketError(Exception):
    """An invalid or currently disallowed packet, for which the protocol has no error answer."""


class ServerSession:
    """A session that answers the packets of one client.

    Args:
      environment: the environment, which the session closes; None for the empty name.
      options: the options for serving the environment.

    Raises:
      SpecError: the protocol cannot describe a space of the environment.
    """

    def __init__(self, environment: gymnasium.Env[Any, Any] | None, options: Options):
        self._environment = environment
        self._options = options
        self._recorder: monitor.EpisodeRecorder | None = None
        self._is_running = False
        if environment is not None:
            self._adopt_spaces(environment)

    def answer(self, request: packets.Request) -> bytes:
        """Handle a packet and return its answer, or b"" if the packet has no answer.

        Raises:
          RefusedPacketError: the packet is invalid.
          Exception: the environment failed: its own exception, or SpecError if an
            observation does not fit its spec.
        """
        answer = _HANDLERS[type(request)](self, request)
        return answer if packets.has_answer(request, self._options.dialect) else b""

    def close(self) -> None:
        """Close the environment."""
        if self._environment is not None:
            self._environment.close()

    def _reset(self, request: packets.Reset) -> bytes:
        environment = self._hosted()
        try:
            returned = environment.reset()
        except (TypeError, ValueError) as error:
            explain(environment, "reset", error)
            raise
        observation, _ = begun(environment, returned)
        self._is_running = True
        if self._recorder is not None:
            self._recorder.begin()
        return packets.encode_observation(self._observed(observation))

    def _step(self, request: packets.Step) -> bytes:
        environment = self._hosted()
        if not self._is_running:
            raise RefusedPacketError(
                "received a Step while no episode is running; send Reset first"
            )
        try:
            value = space_json.from_jsonable(
                self._action.spec, request.action, "the action", check_bounds=True
            )
        except SpecError as error:
            raise RefusedPacketError(f"the action does not fit its space: {error}") from None
        action = self._action.convert(value)
        try:
            observation, given, terminated, truncated, info = environment.step(action)
        except (TypeError, ValueError) as error:
            explain(environment, "step", error)
            raise
        reward = as_reward(environment, given)
        is_last = bool(terminated or truncated)
        self._is_running = not is_last
        if self._recorder is not None:
            self._recorder.add_step(reward, is_last, bool(terminated))
        said: dict[str, Any] = bounded_parsing.jsonable(info) if isinstance(info, Mapping) else {}
        is_truncated = is_last and not terminated
        if is_truncated or (is_last and packets.TRUNCATED in said):
            said[packets.TRUNCATED] = is_truncated
        return packets.encode_step_answer(self._observed(observation), reward, is_last, said)

    def _get_space(self, request: packets.GetSpace) -> bytes:
        self._hosted()
        is_action = request.which is packets.WhichSpace.ACTION
        return (self._action if is_action else self._observation).encoded

    def _sample_action(self, request: packets.SampleAction) -> bytes:
        environment = self._hosted()
        if isinstance(environment, HostedDmEnv):
            sample = environment.sample_action()
        else:
            sample = environment.action_space.sample()
        where = "the sampled action"
        action = elements.to_structure(self._action.space, sample, where)
        return packets.encode_action(
            space_json.to_jsonable(self._action.spec, action, where, check_bounds=True)
        )

    def _monitor(self, request: packets.Monitor) -> bytes:
        self._hosted()
        answer = self._attempt(functools.partial(self._start_recorder, request))
        if answer != _SUCCESS and self._options.dialect == "first":
            # Monitor has no answer in this dialect.
            raise RefusedPacketError(f"Monitor is refused: {answer[4:].decode()}")
        return answer

    def _render(self, request: packets.Render) -> bytes:
        environment = self._hosted()
        # Environments of gym have no `render_mode`.
        if getattr(environment, "render_mode", None) is not None:
            environment.render()
        return b""

    def _upload(self, request: packets.Upload) -> bytes:
        return packets.encode_error(
            "this server does not upload: what Monitor records stays in the folder of its operator"
        )

    def _configure_universe(self, request: packets.UniverseConfigure) -> bytes:
        configure = self._options.configure_universe
        if configure is None:
            return packets.encode_error("this server has no Universe environments to configure")
        return self._attempt(lambda: configure(self._hosted(), request.settings))

    def _wrap_universe(self, request: packets.UniverseWrap) -> bytes:
        wrap = self._options.wrap_universe
        if wrap is None:
            return packets.encode_error("this server has no Universe wrappers")

        def adopt() -> None:
            made = wrap(self._hosted(), request.wrapper, request.settings)
            wrapped = as_hosted(made, "wrap_universe")
            self._adopt_spaces(wrapped)
            self._environment = wrapped
            self._is_running = False

        return self._attempt(adopt)

    def _attempt(self, action: Callable[[], None]) -> bytes:
        """Call `action`, and return the answer, which contains the error if the call failed."""
        try:
            action()
        except Exception as error:
            return packets.encode_error(f"{type(error).__name__}: {error}"[:1000])
        return _SUCCESS

    def _hosted(self) -> gymnasium.Env[Any, Any]:
        if self._environment is None:
            raise RefusedPacketError(
                "received a packet for an environment, but this session has none, because its "
                'client requested the name ""'
            )
        return self._environment

    def _adopt_spaces(self, environment: gymnasium.Env[Any, Any]) -> None:
        read = functools.partial(elements.reader, name="the action", as_sampled=True)
        action = _described(environment.action_space, "action", read)
        write = functools.partial(elements.writer, name="the observation")
        self._observation = _described(environment.observation_space, "observation", write)
        self._action = action

    def _observed(self, observation: Any) -> Any:
        """Return `observation` as a JSON value, or as a uint8 array that is sent as a byte list."""
        spec, image = self._observation.spec, self._observation.image
        where = "the observation"
        value = self._observation.convert(observation)
        if image is None:
            return space_json.to_jsonable(spec, value, where, check_bounds=False)
        path, leaf = image
        for key in path:
            value = value[key]
        return space_json.conform(leaf, value, where)

    def _start_recorder(self, request: packets.Monitor) -> None:
        if request.video:
            raise SpecError("cannot record video: this server records only rewards and lengths")
        if self._options.monitor_directory is None:
            raise SpecError(
                "this server does not record episodes, because its operator has not configured a "
                "folder for them"
            )
        folder = monitor.folder_below(self._options.monitor_directory, request.directory)
        self._recorder = monitor.EpisodeRecorder(folder, request.resume, request.force)


_HANDLERS: dict[type, Callable[[ServerSession, Any], bytes]] = {
    packets.Reset: ServerSession._reset,
    packets.Step: ServerSession._step,
    packets.GetSpace: ServerSession._get_space,
    packets.SampleAction: ServerSession._sample_action,
    packets.Monitor: ServerSession._monitor,
    packets.Render: ServerSession._render,
    packets.Upload: ServerSession._upload,
    packets.UniverseConfigure: ServerSession._configure_universe,
    packets.UniverseWrap: ServerSession._wrap_universe,
}


class _Described(NamedTuple):
    """A space of the environment, in the forms that a session needs.

    Attributes:
      space: the nearest space of Gymnasium's own types.
      spec: its spec.
      encoded: the answer that contains its JSON.
      image: the path of keys to the array that is sent as a byte list, and the spec of the array;
        None if elements are sent as JSON.
      convert: converts actions from values of the spec to elements of the space, or observations
        from elements to values.
    """

    space: spaces.Space[Any]
    spec: Any
    encoded: bytes
    image: tuple[tuple[Any, ...], specs.Array] | None
    convert: elements.Converter


def _described(
    space: spaces.Space[Any],
    name: str,
    converter: Callable[[spaces.Space[Any]], elements.Converter],
) -> _Described:
    own = gymnasium_json.from_json(gymnasium_json.to_json(space, name, []), name)
    spec, value = elements.to_spec(own, name), space_json.to_json(own, name)
    path, leaf = structures.single_leaf(spec)
    is_image = value["type"] == "Box" and leaf.dtype == np.uint8
    image = (path, leaf) if is_image else None
    return _Described(own, spec, packets.encode_space(value), image, converter(own))
