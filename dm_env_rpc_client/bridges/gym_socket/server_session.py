"""One client's session on the server: packets in, answers out, no I/O on sockets.

The protocol has error answers for few packets. For an error without an answer, such as an
action that does not fit its space, the session raises and its connection ends: any answer
would describe a step that never happened.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import dm_env
import numpy as np

from dm_env_rpc_client import arguments
from dm_env_rpc_client.bridges.gym_socket import monitor, packet_codec, packets, samples, spaces
from dm_env_rpc_client.bridges.gym_socket.packet_codec import Limits
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.system.conversions import converted
from dm_env_rpc_client.system.wrong_returns import check_time_step
from dm_env_rpc_client.tensors import bounded_json

EnvironmentFactory = Callable[[], Any]
"""Makes a dm_env.Environment or a gymnasium.Env."""

ConfigureHandler = Callable[[dm_env.Environment, Any], None]
WrapHandler = Callable[[dm_env.Environment, str, Any], dm_env.Environment]


@dataclasses.dataclass(frozen=True)
class Options:
    """How to serve; see the arguments of `serve`.

    Raises:
      SpecError: one is of another type or out of range.
    """

    dialect: packet_codec.Dialect = "first"
    processes: bool = False
    max_connections: int = 64
    limits: Limits = dataclasses.field(default_factory=Limits)
    handshake_timeout: float | None = 5.0
    idle_timeout: float | None = 600.0
    monitor_directory: pathlib.Path | None = None
    configure_universe: ConfigureHandler | None = None
    wrap_universe: WrapHandler | None = None

    def __post_init__(self) -> None:
        packet_codec.check_dialect(self.dialect)
        arguments.flag("processes", self.processes)
        count = arguments.count("max_connections", self.max_connections)
        object.__setattr__(self, "max_connections", count)
        for name in ("handshake_timeout", "idle_timeout"):
            seconds = arguments.seconds(name, getattr(self, name), none=arguments.NO_LIMIT)
            object.__setattr__(self, name, seconds)
        for name in ("configure_universe", "wrap_universe"):
            none = "None to refuse the packet"
            arguments.function(name, getattr(self, name), none=none)


_SUCCESS = packet_codec.encode_error("")


class RefusedPacketError(Exception):
    """A packet is invalid, or invalid at this time, and has no error answer."""


def make_environment(factory: EnvironmentFactory) -> dm_env.Environment:
    """Calls a factory and returns its environment as a dm_env.Environment."""
    made = factory()
    environment = converted(made)
    if isinstance(environment, dm_env.Environment):
        return environment
    raise SpecError(
        f"the factory made a {type(made).__name__}; expected a dm_env.Environment or gymnasium.Env"
    )


class ServerSession:
    """Answers the packets of one client.

    An environment may have members beyond those of dm_env: `info`, a mapping that is sent with
    each step; `sample_action()`; `render()`. Without them the info only tells whether a time
    limit ended the episode, actions are sampled from the spec, and Render does nothing.

    Args:
      environment: the environment, which the session closes; None for the empty name.
      options: how to serve it.

    Raises:
      SpecError: the protocol has no space for a spec.
    """

    def __init__(self, environment: dm_env.Environment | None, options: Options):
        self._environment = environment
        self._options = options
        self._recorder: monitor.EpisodeRecorder | None = None
        self._is_running = False
        self._random = np.random.default_rng()
        if environment is not None:
            self._adopt_specs(environment)

    def answer(self, request: packets.Request) -> bytes:
        """Handles a packet and returns its answer; b"" if it has no answer.

        Raises:
          RefusedPacketError: the packet is invalid.
          Exception: the environment failed: its own exception, or SpecError if its
            observation does not fit its spec.
        """
        answer = _HANDLERS[type(request)](self, request)
        return answer if packet_codec.has_answer(request, self._options.dialect) else b""

    def close(self) -> None:
        """Closes the environment."""
        if self._environment is not None:
            self._environment.close()

    def _reset(self, request: packets.Reset) -> bytes:
        environment = self._hosted()
        timestep = environment.reset()
        self._is_running = True
        try:
            self._record(timestep)
            return packet_codec.encode_observation(self._observation(timestep))
        except AttributeError:
            check_time_step(environment, "reset", timestep)
            raise

    def _step(self, request: packets.Step) -> bytes:
        environment = self._hosted()
        if not self._is_running:
            raise RefusedPacketError("a Step while no episode is running; send Reset first")
        try:
            action = samples.from_jsonable(
                self._action_spec, request.action, "the action", check_bounds=True
            )
        except SpecError as error:
            raise RefusedPacketError(f"the action does not fit its space: {error}") from None
        timestep = environment.step(action)
        try:
            is_first, self._is_running = timestep.first(), not timestep.last()
        except AttributeError:
            check_time_step(environment, "step", timestep)
            raise
        if is_first:
            raise RuntimeError("the environment returned a FIRST step in the middle of an episode")
        self._record(timestep)
        return packet_codec.encode_step_answer(
            self._observation(timestep),
            float(timestep.reward),
            timestep.last(),
            _info(environment, timestep),
        )

    def _get_space(self, request: packets.GetSpace) -> bytes:
        self._hosted()
        return self._encoded_spaces[request.which]

    def _sample_action(self, request: packets.SampleAction) -> bytes:
        environment = self._hosted()
        if hasattr(environment, "sample_action"):
            action = environment.sample_action()
        else:
            action = samples.sample(self._action_spec, self._random)
        return packet_codec.encode_action(
            samples.to_jsonable(self._action_spec, action, "the sampled action", check_bounds=True)
        )

    def _monitor(self, request: packets.Monitor) -> bytes:
        self._hosted()
        answer = self._attempt(functools.partial(self._start_recorder, request))
        if answer != _SUCCESS and self._options.dialect == "first":
            # Monitor has no answer in this dialect.
            raise RefusedPacketError(f"Monitor is refused: {answer[4:].decode()}")
        return answer

    def _render(self, request: packets.Render) -> bytes:
        render = getattr(self._hosted(), "render", None)
        if render is not None:
            render()
        return b""

    def _upload(self, request: packets.Upload) -> bytes:
        return packet_codec.encode_error(
            "this server does not upload: what Monitor records stays in the folder of its operator"
        )

    def _configure_universe(self, request: packets.UniverseConfigure) -> bytes:
        configure = self._options.configure_universe
        if configure is None:
            return packet_codec.encode_error(
                "this server has no Universe environments to configure"
            )
        return self._attempt(lambda: configure(self._hosted(), request.settings))

    def _wrap_universe(self, request: packets.UniverseWrap) -> bytes:
        wrap = self._options.wrap_universe
        if wrap is None:
            return packet_codec.encode_error("this server has no Universe wrappers")

        def adopt() -> None:
            wrapped = wrap(self._hosted(), request.wrapper, request.settings)
            self._adopt_specs(wrapped)
            self._environment = wrapped
            self._is_running = False

        return self._attempt(adopt)

    def _attempt(self, action: Callable[[], None]) -> bytes:
        """Runs an action that may fail without ending the session; returns the error string."""
        try:
            action()
        except Exception as error:
            return packet_codec.encode_error(f"{type(error).__name__}: {error}"[:1000])
        return _SUCCESS

    def _hosted(self) -> dm_env.Environment:
        if self._environment is None:
            raise RefusedPacketError(
                'a packet for an environment, in a session with the name "", which has none'
            )
        return self._environment

    def _adopt_specs(self, environment: dm_env.Environment) -> None:
        if environment.reward_spec().shape != ():
            raise SpecError("gym-socket-api has scalar rewards only")
        action_spec = environment.action_spec()
        observation_spec = environment.observation_spec()
        # In the order of `packets.WhichSpace`.
        self._encoded_spaces = _encode_space(action_spec), _encode_space(observation_spec)
        self._action_spec = action_spec
        self._observation_spec = observation_spec
        self._leaf = spaces.single_leaf(observation_spec)

    def _observation(self, timestep: dm_env.TimeStep) -> Any:
        """A uint8 array, which is sent as a byte list, or a JSON value."""
        value = timestep.observation
        if self._leaf is not None and self._leaf.dtype == np.uint8:
            while isinstance(value, Mapping) and len(value) == 1:
                (value,) = value.values()
            if isinstance(value, np.ndarray) and value.dtype == np.uint8:
                return samples.conform(self._leaf, value, "the observation")
        return samples.to_jsonable(
            self._observation_spec, timestep.observation, "the observation", check_bounds=False
        )

    def _start_recorder(self, request: packets.Monitor) -> None:
        if request.video:
            raise SpecError("this server records rewards and lengths, not video")
        if self._options.monitor_directory is None:
            raise SpecError("this server does not record: its operator configured no folder")
        folder = monitor.folder_below(self._options.monitor_directory, request.directory)
        self._recorder = monitor.EpisodeRecorder(folder, request.resume, request.force)

    def _record(self, timestep: dm_env.TimeStep) -> None:
        if self._recorder is not None:
            self._recorder.record(timestep)


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


def _encode_space(spec: Any) -> bytes:
    return packet_codec.encode_space(spaces.to_json(spaces.spec_to_space(spec)))


def _info(environment: dm_env.Environment, timestep: dm_env.TimeStep) -> dict[str, Any]:
    info = getattr(environment, "info", {})
    said: dict[str, Any] = bounded_json.jsonable(info) if isinstance(info, Mapping) else {}
    if timestep.last() and (timestep.discount or packets.TRUNCATED in said):
        said[packets.TRUNCATED] = bool(timestep.discount)
    return said
