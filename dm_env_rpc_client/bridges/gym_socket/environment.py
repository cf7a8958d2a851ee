"""A client that presents a gym-socket-api server's environment as a dm_env.Environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dm_env
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from dm_env_rpc_client import arguments
from dm_env_rpc_client.adaptors.gymnasium import elements
from dm_env_rpc_client.bridges.gym_socket import packets, space_json
from dm_env_rpc_client.bridges.gym_socket.connection import PacketConnection
from dm_env_rpc_client.bridges.gym_socket.packets import Limits, ObservationBounds
from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.tensors import bounded_parsing
from dm_env_rpc_client.transports.net import addresses


class GymSocketEnvironment(dm_env.Environment):
    """An environment hosted by a gym-socket-api server; this class requires the `gymnasium` extra.

    Gymnasium's spaces become specs: a Box becomes a BoundedArray, a Discrete a DiscreteArray, a
    MultiBinary an int8 BoundedArray from 0 to 1, a MultiDiscrete an int64 BoundedArray, and a
    Tuple a tuple. A Box has no dtype in this protocol: it becomes uint8 if all its bounds are 0
    and 255, otherwise float64.

    The step that ends an episode is LAST. Its discount is 0, or 1 if `TimeLimit.truncated` is true
    in its info. A step before the first reset or after a LAST step ignores its action and begins an
    episode. Arrays in a TimeStep belong to the caller.

    Packets carry no id. If an answer might belong to another packet (after a missed deadline, a
    malformed answer or an interrupted wait), the environment becomes unusable: every later call
    raises ConnectionLostError, chained to the first cause.

    Args:
      address: `host:port` of the server.
      env_name: the server's name for the environment; "" for a session without an
        environment, which can only `upload`.
      timeout: time limit for connecting, in seconds; None for no limit.
      request_timeout: time limit for each answer, in seconds, including the answer to `env_name`;
        None for no limit.
      dialect: "first", the dialect of the protocol document, or "latest", in which Monitor
        has an answer and Universe has packets. Both ends must use the same dialect.
      observation_dtype: the dtype of every Box in the observations, instead of uint8 or float64;
        float16 becomes float32 in specs.
      action_dtype: the dtype of every Box in the actions, instead of uint8 or float64.
      insecure: allow an address other than loopback; nothing is encrypted.
      limits: limits for the server's messages.

    Raises:
      ConnectionLostError, DeadlineExceededError: no connection was established, or the
        connection was lost.
      DmEnvRpcError: the server refused the environment; the text gives the reason.
      ProtocolError: the server broke the protocol.
      SpecError: a space has an unknown type, the address is not loopback and `insecure` is False,
        or an argument is invalid.
    """

    def __init__(
        self,
        address: str,
        env_name: str,
        *,
        timeout: float | None = 10.0,
        request_timeout: float | None = 60.0,
        dialect: packets.Dialect = "first",
        observation_dtype: npt.DTypeLike | None = None,
        action_dtype: npt.DTypeLike | None = None,
        insecure: bool = False,
        limits: Limits | None = None,
    ):
        packets.check_dialect(dialect)
        timeout = arguments.seconds("timeout", timeout, none=arguments.NO_LIMIT)
        request_timeout = arguments.seconds(
            "request_timeout", request_timeout, none=arguments.NO_LIMIT
        )
        _check_dtype("observation_dtype", observation_dtype)
        _check_dtype("action_dtype", action_dtype)
        arguments.flag("insecure", insecure)
        arguments.instance("env_name", env_name, str, "the name of an environment")
        host_port = addresses.parse_host_port(address, listens=False)
        if not (insecure or addresses.is_loopback(address)):
            raise SpecError(
                f"{address} is not a loopback address, and gym-socket-api has no encryption; pass "
                "insecure=True to send plaintext, or use a tunnel"
            )
        limits = packets.check_limits(limits)
        if len(env_name.encode(errors="replace")) > limits.name:
            raise SpecError(f"the environment name has more than {limits.name} bytes")
        self.address = address
        self._env_name = env_name
        self._is_running = False
        self._info: Mapping[str, Any] = {}
        self._connection = PacketConnection(host_port, timeout, request_timeout, dialect, limits)
        try:
            self._connection.command(packets.Handshake(env_name))
            if env_name:
                self._read_spaces(observation_dtype, action_dtype)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        state = "" if self.poisoned_by is None else f", unusable: {self.poisoned_by!r}"
        return f"<{type(self).__name__} {self._env_name!r} at {self.address}{state}>"

    @property
    def poisoned_by(self) -> BaseException | None:
        """The error that made the environment unusable, or None if the environment is usable."""
        return self._connection.poisoned_by

    @property
    def info(self) -> Mapping[str, Any]:
        """The info that the server sent with the last step; empty after a reset."""
        return self._info

    @property
    def action_space(self) -> spaces.Space[Any]:
        """The server's action space, as a Gymnasium space."""
        self._check_environment()
        return self._action_space

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """The server's observation space, as a Gymnasium space."""
        self._check_environment()
        return self._observation_space

    def reset(self) -> dm_env.TimeStep:
        """Begin an episode.

        Returns:
          A FIRST TimeStep.

        Raises:
          As `step`.
        """
        observation = self._observation(self._hosted.ask(packets.Reset()))
        self._is_running = True
        self._info = {}
        return dm_env.restart(observation)

    def step(self, action: Any) -> dm_env.TimeStep:
        """Take a step, or begin an episode if none is running.

        Args:
          action: an action that conforms to `action_spec` or can be cast to it without changing its
            value.

        Returns:
          The TimeStep. `reward` is a float; `discount` is 0.0 if the episode ended for a reason
          other than a time limit, and 1.0 otherwise.

        Raises:
          SpecError: the action does not conform to the spec; nothing was sent.
          ProtocolError: the server broke the protocol, or sent a value outside its own space.
          DeadlineExceededError, ConnectionLostError, ConnectionClosedError: no answer came,
            and none will.
        """
        connection = self._hosted
        if not self._is_running:
            return self.reset()
        where, spec = "the action", self._action_spec
        structure = elements.to_structure(self._action_space, action, where)
        jsonable = space_json.to_jsonable(spec, structure, where, check_bounds=True)
        # Set again when the step is complete: after an interrupted step, the next one is a reset.
        self._is_running = False
        answer: packets.StepAnswer = connection.ask(packets.Step(jsonable))
        observation = self._observation(answer.observation)
        if not isinstance(answer.info, dict):
            error = ProtocolError(f"a step's info is a JSON object, got {answer.info!r:.60}")
            raise connection.poison(error)
        self._info = answer.info
        self._is_running = not answer.done
        if not answer.done:
            return dm_env.transition(answer.reward, observation)
        if answer.info.get(packets.TRUNCATED) is True:
            return dm_env.truncation(answer.reward, observation)
        return dm_env.termination(answer.reward, observation)

    def action_spec(self) -> Any:
        """Return the action spec, which the class docstring describes."""
        self._check_environment()
        return self._action_spec

    def observation_spec(self) -> Any:
        """Return the observation spec, which the class docstring describes."""
        self._check_environment()
        return self._observation_spec

    def sample_action(self) -> Any:
        """Return an action that the server sampled from its action space.

        Raises:
          As `step`.
        """
        jsonable = self._hosted.ask(packets.SampleAction())
        return self._from_server(self._action_spec, jsonable, "the sampled action")

    def monitor(
        self, directory: str, *, resume: bool = False, force: bool = False, video: bool = False
    ) -> None:
        """Ask the server to record all episodes, starting with the next reset.

        The first dialect has no answer to this packet: a server that refuses it can only end the
        session.

        Args:
          directory: the folder of the recording, a path on the server's machine.
          resume: append to an existing recording.
          force: remove an existing recording.
          video: record video too; only in the latest dialect.

        Raises:
          DmEnvRpcError: the server refused (only in the latest dialect).
          DmEnvRpcClientError: otherwise as `step`.
        """
        self._hosted.command(packets.Monitor(directory, resume, force, video))

    def render(self) -> None:
        """Ask the server to render on its own machine, without waiting for an answer.

        Raises:
          As `step`.
        """
        self._hosted.command(packets.Render())

    def upload(self, directory: str, api_key: str, algorithm_id: str = "") -> None:
        """Ask the server to upload a directory in which `monitor` recorded episodes.

        Args:
          directory: a path on the server's machine.
          api_key: the key of the account to upload to.
          algorithm_id: the ID of the recorded algorithm.

        Raises:
          DmEnvRpcError: the server refused.
          DmEnvRpcClientError: otherwise as `step`.
        """
        self._connection.command(packets.Upload(directory, api_key, algorithm_id))

    def configure_universe(self, settings: Any) -> None:
        """Configure a Universe environment; only the latest dialect supports this.

        Args:
          settings: a JSON value.

        Raises:
          DmEnvRpcError: the server refused.
          DmEnvRpcClientError: otherwise as `step`.
        """
        self._hosted.command(packets.UniverseConfigure(settings))

    def wrap_universe(self, wrapper: str, settings: Any) -> None:
        """Wrap the environment in a Universe wrapper; only the latest dialect supports this.

        The spaces are requested again, because a wrapper may change them.

        Args:
          wrapper: the name of the wrapper.
          settings: a JSON value.

        Raises:
          DmEnvRpcError: the server refused.
          DmEnvRpcClientError: otherwise as `step`.
        """
        self._hosted.command(packets.UniverseWrap(wrapper, settings))
        self._read_spaces(*self._box_dtypes)

    def close(self) -> None:
        """End the session without raising; repeated calls have no effect."""
        self._connection.close()

    def _read_spaces(
        self, observation_dtype: npt.DTypeLike | None, action_dtype: npt.DTypeLike | None
    ) -> None:
        action_space = self._read_space(packets.WhichSpace.ACTION, action_dtype)
        observation_space = self._read_space(packets.WhichSpace.OBSERVATION, observation_dtype)
        action_spec = elements.to_spec(action_space, "action")
        observation_spec = elements.to_spec(observation_space, "observation")
        self._box_dtypes = observation_dtype, action_dtype
        self._action_space, self._observation_space = action_space, observation_space
        self._action_spec, self._observation_spec = action_spec, observation_spec
        # Nested lists add brackets to the count of values.
        values = 64 + 4 * space_json.size_of(observation_space)
        self._connection.bounds = ObservationBounds(
            observation_space.shape, max(values, bounded_parsing.MAX_VALUES)
        )

    def _read_space(
        self, which: packets.WhichSpace, box_dtype: npt.DTypeLike | None
    ) -> spaces.Space[Any]:
        value = self._connection.ask(packets.GetSpace(which))
        try:
            return space_json.from_json(value, f"the {which.name.lower()} space", box_dtype)
        except ProtocolError as error:
            raise self._connection.poison(error) from None

    def _observation(self, value: Any) -> Any:
        spec = self._observation_spec
        if isinstance(value, np.ndarray) and value.dtype == getattr(spec, "dtype", None):
            return value  # `packets` checked the shape before it allocated the array.
        return self._from_server(spec, value, "the observation")

    def _from_server(self, spec: Any, value: Any, where: str) -> Any:
        try:
            return space_json.from_jsonable(spec, value, where, check_bounds=False)
        except SpecError as error:
            raise self._connection.poison(
                ProtocolError(f"the server at {self.address} broke its own space: {error}")
            ) from None

    @property
    def _hosted(self) -> PacketConnection:
        self._check_environment()
        return self._connection

    def _check_environment(self) -> None:
        if not self._env_name:
            raise SpecError(
                'env_name is "", so this session has no environment and can only upload; pass the '
                "name of an environment"
            )


def _check_dtype(name: str, dtype: Any) -> None:
    """Raise SpecError if an argument is neither None nor a numeric dtype."""
    try:
        if dtype is None or np.dtype(dtype).kind in "biuf":
            return
    except TypeError:
        pass
    raise arguments.refused(
        name, "a numeric dtype, such as 'float32'", dtype, "or None for float64"
    )
