"""The base class of the adaptors, which builds requests and interprets answers without I/O.

`DmEnvAdaptor` and `AsyncDmEnvAdaptor` send the requests and receive the answers.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import dm_env
import numpy as np
from dm_env import specs as dm_env_specs

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.client.base_connection import BaseConnection
from dm_env_rpc_client.environment.gymnasium_names import DmEnvNames
from dm_env_rpc_client.environment.made_again import MadeAgain
from dm_env_rpc_client.environment.requested import AutoObservations, check_adapting, visible_names
from dm_env_rpc_client.environment.restarting import Supervision
from dm_env_rpc_client.environment.server_location import Site
from dm_env_rpc_client.errors import DmEnvRpcClientError, SpecError
from dm_env_rpc_client.launch.launched import Launch
from dm_env_rpc_client.plain_text import printable
from dm_env_rpc_client.protocol import batches, lifecycle, timesteps
from dm_env_rpc_client.protocol.envelopes import EncodedRequest
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.protocol.pipeline import MAX_REQUESTS_IN_FLIGHT
from dm_env_rpc_client.protocol.step_codec import StepCodec
from dm_env_rpc_client.protocol.step_layout import StepAnswer, UnreadStep
from dm_env_rpc_client.protocol.timesteps import ACTION, DISCOUNT, OBSERVATION, REWARD
from dm_env_rpc_client.tensors import array_kinds, nesting, specs
from dm_env_rpc_client.tensors.array_kinds import ArrayKind
from dm_env_rpc_client.tensors.memory_limits import DEFAULT, Limits
from dm_env_rpc_client.tensors.spec_manager import SpecManager

__all__ = [
    "AHEAD",
    "AHEAD_BYTES",
    "NO_SETTINGS",
    "UNROLL_AHEAD",
    "BaseAdaptor",
    "Extensions",
]


def take(
    prepared: Iterator[EncodedRequest], count: int
) -> tuple[list[EncodedRequest], Exception | None]:
    """Collect up to `count` requests from an iterator, stopping at the first error.

    Callers can then take the steps before an invalid action, and raise its error afterwards.

    Args:
      prepared: an iterator that makes each request when it is taken.
      count: the maximum number of requests to take.

    Returns:
      The requests, and the error that was raised instead of the next request, or None if there was
      no error.
    """
    taken: list[EncodedRequest] = []
    try:
        # The requests before an error stay in the list.
        taken.extend(itertools.islice(prepared, count))
    except Exception as error:
        return taken, error
    return taken, None


def per_step(actions: Iterable[Any] | Mapping[str, Any]) -> Iterable[Any]:
    """Convert `actions` to an iterable that contains one action per step.

    Args:
      actions: an iterable of actions; or one structure whose leaves have a leading time axis.

    Returns:
      An iterable of actions.

    Raises:
      SpecError: the leaves have different lengths, or there are no leaves.
    """
    # Any other iterable is left alone: it may be infinite.
    if not isinstance(actions, Mapping):
        return actions
    flat = nesting.flatten_dict(actions, nesting.SEPARATOR, strict=False)
    lengths = {name: len(values) for name, values in flat.items()}
    if len(set(lengths.values())) != 1:
        raise SpecError(
            "all actions of an unroll must have the same number of steps, got "
            f"{lengths or 'no actions'}"
        )
    length = next(iter(lengths.values()))
    for name, values in flat.items():
        if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iu":
            flat[name] = values.tolist()  # Python ints are encoded faster than NumPy's.
    return [{name: values[t] for name, values in flat.items()} for t in range(length)]


MYPY = False
"""A constant that mypy treats as True because of its name. At run time, it is False."""

# mypy sees no types in dm_env, and assumes that a subclass has every attribute: a misspelt method
# would be no error. Pyright reads the types from dm_env's source, and needs no help.

if MYPY:

    class Environment:  # dm_env documents it
        def reset(self) -> dm_env.TimeStep: ...
        def step(self, action: Any) -> dm_env.TimeStep: ...
        def action_spec(self) -> Any: ...
        def observation_spec(self) -> Any: ...
        def reward_spec(self) -> Any: ...
        def discount_spec(self) -> Any: ...
        def close(self) -> None: ...

else:
    Environment = dm_env.Environment


_Connection = TypeVar("_Connection")

Extensions: TypeAlias = Mapping[str, Any] | Callable[[_Connection], Mapping[str, Any]]
"""Extensions by name, or a function that takes a connection and returns them."""

AHEAD = 64
"""The default maximum number of pending steps in `rollout`. If a caller closes the generator
early, up to this many steps have been taken whose results the caller never read."""

UNROLL_AHEAD = MAX_REQUESTS_IN_FLIGHT
"""The default maximum number of pending steps in `unroll`, which returns all of its steps. With
a lower limit, `unroll` would spend more time waiting for a distant server."""

AHEAD_BYTES = 64 << 20
"""The maximum total size, in bytes, of the answers to pending steps."""

NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})
"""The default for arguments that take settings: an empty mapping."""


# Found faster than members of enums; see `protocol/lifecycle.py`.
_RUNNING = State.RUNNING
_FIRST, _MID = dm_env.StepType.FIRST, dm_env.StepType.MID

# The `__new__` of a named tuple is a Python function, which every step would call.
_new = tuple.__new__

_Answer: TypeAlias = UnreadStep | StepAnswer | dm_env_rpc_pb2.StepResponse
"""The answer to a step, in any of the forms that the codec returns."""


class BaseAdaptor(DmEnvNames, MadeAgain):
    """The base class of adaptors, which does no I/O. `DmEnvAdaptor` documents the arguments.

    Attributes:
      world_name: the name of the world, with which other agents can join it; None if the adaptor
        was made without `make` and `join_world`.
    """

    world_name: str | None = None
    _supervision: Supervision | None = None
    _site: Site[Any] | None = None
    _records_reading = True
    """Whether TimeSteps are recorded for restarts when their answers are read. Otherwise, they are
    recorded when callers get them."""
    _after: Callable[[dm_env.TimeStep], dm_env.TimeStep] | None = None
    """A function that records or converts each TimeStep, or None if neither is needed. In most
    environments, the value is None, which costs each step only one extra comparison."""

    def __init__(
        self,
        connection: BaseConnection,
        specs: dm_env_rpc_pb2.ActionObservationSpecs,
        requested_observations: Sequence[str] | AutoObservations | None,
        nested_tensors: bool,
        extensions: Mapping[str, Any] | None,
        unwrap_single: bool,
        arrays: str = "numpy",
        device: Any = None,
    ):
        # Here as well as in `join_world`: adaptors may be constructed directly.
        check_adapting(
            {
                "requested_observations": requested_observations,
                "nested_tensors": nested_tensors,
                "extensions": extensions,
                "unwrap_single": unwrap_single,
                "arrays": arrays,
                "device": device,
            }
        )
        self._kind = array_kinds.named(arrays, device)
        self._after_step()
        self._connection: BaseConnection | None = connection
        self._lifecycle = connection.lifecycle
        self._limits = connection.limits or DEFAULT
        self._requested = (
            AutoObservations.REQUEST_REGULAR_OBSERVATIONS
            if requested_observations is None
            else requested_observations
        )
        self._nested_tensors = nested_tensors
        self._unwrap_single = unwrap_single
        self._adopt(specs)
        self._extension_names = tuple(extensions or ())
        for name, extension in (extensions or {}).items():
            # An extension must not replace a method such as `step`.
            if hasattr(self, name):
                raise SpecError(f"the extension name {name!r} is already the name of an attribute")
            setattr(self, name, extension)

    def __repr__(self) -> str:
        return printable(
            f"<{type(self).__name__} at {self._where()}: actions "
            f"{', '.join(self._actions.names())}; observations "
            f"{', '.join(self._observation_specs)}>"
        )

    def _repr_html_(self) -> str:
        from dm_env_rpc_client.tensors.displays.connections import show_environment

        return show_environment(
            f"{type(self).__name__} at {self._where()}",
            self.action_spec(),
            self.observation_spec(),
            self.reward_spec(),
            self.discount_spec(),
        )

    def _where(self) -> str:
        return "closed" if self._connection is None else self._connection.address

    @property
    def state(self) -> State:
        """The environment's state according to the last answer; INTERRUPTED after a lost step."""
        return self._lifecycle.state if self.interruption is None else State.INTERRUPTED

    @property
    def server(self) -> Launch | None:
        """The server last launched for the environment, or None for a server at an address.

        The `logs()` and `exit_code` of the server remain available after `close`.
        """
        return None if self._site is None else self._site.launch

    @property
    def restarts(self) -> int:
        """The number of restarts of the environment, which occur only with `make(restart=...)`."""
        return 0 if self._supervision is None else self._supervision.count

    @property
    def interruption(self) -> DmEnvRpcClientError | None:
        """The error that interrupted the last step and ended its sequence, or None if none did."""
        return None if self._supervision is None else self._supervision.interruption

    @property
    def _is_lost(self) -> bool:
        """Whether the next call restarts the environment."""
        supervision = self._supervision
        return (
            supervision is not None and supervision.due is not None and not supervision.is_joining
        )

    def _lose(self, error: DmEnvRpcClientError, connection: BaseConnection) -> None:
        """Mark the connection as lost, or raise `error` if the environment cannot restart."""
        supervision = self._supervision
        if supervision is None or supervision.is_joining or self._connection is None:
            raise error
        # The request failed, not the connection: a restart would hide the error.
        if connection.is_usable:
            raise error
        # A late error of a former connection must not end the new one.
        if connection is self._connection:
            supervision.lose(error, connection.address, self._specs_by_kind())

    def _lost_step(self) -> dm_env.TimeStep | None:
        """Return the TimeStep for a lost step, or None if the step would have begun a sequence."""
        if self._supervision is None or self._supervision.due is None:
            return None
        lost = self._supervision.lost_step(self._reward_spec, self._discount_spec)
        # Its observation is converted already if its caller got it before it was recorded.
        return None if lost is None else self._given(self._plain(lost))

    def _after_step(self) -> None:
        """Set the function that records each TimeStep for restarts and converts its arrays."""
        supervision, kind = self._supervision, self._kind
        if supervision is None or not self._records_reading:
            self._after = None if kind.library == "numpy" else _converter(kind)
        elif kind.library == "numpy":
            self._after = supervision.saw
        else:
            convert = _converter(kind)
            self._after = lambda timestep: convert(supervision.saw(timestep))

    def _given(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        """Convert the arrays of a single or stacked TimeStep to the requested kind."""
        return timestep if self._kind.library == "numpy" else _converter(self._kind)(timestep)

    def _plain(self, step: Any) -> Any:
        """Convert the arrays of a step to NumPy for stacking; leave an UnreadStep unchanged."""
        if self._kind.library == "numpy" or type(step) is UnreadStep:
            return step
        return array_kinds.to_numpy(step, "the TimeStep")

    def _specs_by_kind(self) -> dict[str, Any]:
        """Return all specs by method name, with flat names for actions and observations."""
        return {
            "action_spec": dict(self._action_specs),
            "observation_spec": dict(self._observation_specs),
            "reward_spec": self.reward_spec(),
            "discount_spec": self.discount_spec(),
        }

    def _forget_extensions(self) -> None:
        for name in self._extension_names:
            setattr(self, name, None)

    def reward(
        self, state: int, step_type: dm_env.StepType, observations: Mapping[str, Any]
    ) -> Any:
        """Return the reward of a step. Override this method to compute the reward yourself.

        Another thread might call this method. Later answers are processed after the method
        returns.

        Args:
          state: the EnvironmentStateType of the step.
          step_type: the type of the step.
          observations: the observations by flat name.

        Returns:
          A value that conforms to `reward_spec`; None for a FIRST step.
        """
        if step_type is _FIRST:
            return None
        return observations[REWARD] if self._reward_spec is not None else 0.0

    def discount(
        self, state: int, step_type: dm_env.StepType, observations: Mapping[str, Any]
    ) -> Any:
        """Return the discount of a step. Override this method to compute the discount yourself.

        Args:
          state: as for `reward`.
          step_type: the type of the step.
          observations: the observations by flat name.

        Returns:
          A value that conforms to `discount_spec`; None for a FIRST step.
        """
        if step_type is _FIRST:
            return None
        if self._discount_spec is not None:
            return observations[DISCOUNT]
        return timesteps.default_discount(step_type, state == dm_env_rpc_pb2.TERMINATED)

    def observation_spec(self) -> Any:
        """Return the observation specs by name, nested in the same way as in a TimeStep."""
        if self._is_bare(self._observation_specs, OBSERVATION):
            return self._observation_specs[OBSERVATION]
        return self._nest(dict(self._observation_specs))

    def action_spec(self) -> Any:
        """Return the action specs by name, nested in the same way as in `step`."""
        if self._is_bare(self._action_specs, ACTION):
            return self._action_specs[ACTION]
        return self._nest(dict(self._action_specs))

    def _is_bare(self, specs: Mapping[str, Any], name: str) -> bool:
        """Whether `name` is the only array in `specs` and is used without a mapping."""
        return self._unwrap_single and specs.keys() == {name}

    def reward_spec(self) -> Any:
        """Return the server's spec for the observation `reward`, or dm_env's default spec."""
        if self._reward_spec is None:
            return dm_env.Environment.reward_spec(self)
        return self._reward_spec

    def discount_spec(self) -> Any:
        """Return the server's spec for the observation `discount`, or dm_env's default spec."""
        if self._discount_spec is None:
            return dm_env.Environment.discount_spec(self)
        return self._discount_spec

    def _adopt(self, new: dm_env_rpc_pb2.ActionObservationSpecs) -> None:
        """Adopt new specs, or keep the former specs if any new spec is invalid."""
        self._adopted = adopted = _adopted(new, self._requested, self._nested_tensors, self._limits)
        self._actions = adopted.actions
        self._observations = adopted.observations
        self._codec = adopted.codec
        self._hidden = adopted.hidden
        self._num_rows = adopted.num_rows
        self._lifecycle.is_batch = adopted.num_rows is not None
        self._is_nested = adopted.is_nested
        self._reward_spec = adopted.reward_spec
        self._discount_spec = adopted.discount_spec
        self._observation_specs = adopted.observation_specs
        self._action_specs = adopted.action_specs
        self._has_bare_observation = self._is_bare(adopted.observation_specs, OBSERVATION)

    def _request(self, action: Any) -> EncodedRequest:
        if not isinstance(action, Mapping):
            if not self._is_bare(self._action_specs, ACTION):
                raise SpecError(
                    f"an action must be a mapping of names to values, got {type(action).__name__}"
                    f"; actions: {', '.join(map(repr, self._actions.names())) or 'none'}"
                )
            action = {ACTION: action}
        return self._codec.encode(action)

    def _interpret_mid_step(self, answer: _Answer) -> dm_env.TimeStep | UnreadStep:
        """Interpret the answer to a step, but return the UnreadStep of a MID step as it is."""
        if (
            type(answer) is UnreadStep
            # FIRST and LAST steps are read at once: rows treat them differently.
            and self._lifecycle.state is _RUNNING
            and self._lifecycle.previous is _RUNNING
            and self._num_rows is None
        ):
            return answer
        return self._interpret_step(answer)

    def _interpret_step(self, answer: _Answer) -> dm_env.TimeStep:
        """Build the TimeStep from an answer. Answers must be passed in their order of arrival."""
        before, after = self._lifecycle.previous, self._lifecycle.state
        # Most steps are MID, which needs no call.
        step_type = _MID if before is after is _RUNNING else lifecycle.step_type(before, after)
        if type(answer) is UnreadStep:
            state, observations = answer.state, answer.read()  # `interpret`, inlined.
        else:
            state, observations = self._codec.interpret(answer)
        # A server may send anything: row errors and step types of a batch are checked before use.
        if self._num_rows is not None:
            batches.check_step(observations, self._num_rows)
        if (
            step_type is _MID
            and getattr(self.reward, "__func__", None) is _OWN_REWARD
            and getattr(self.discount, "__func__", None) is _OWN_DISCOUNT
        ):
            # Both methods, inlined for most steps unless a subclass overrides them.
            reward = 0.0 if self._reward_spec is None else observations[REWARD]
            discount = 1.0 if self._discount_spec is None else observations[DISCOUNT]
        else:
            reward = self.reward(state=state, step_type=step_type, observations=observations)
            discount = self.discount(state=state, step_type=step_type, observations=observations)
        # Requested for the reward, the discount or infos, and no observations of the TimeStep.
        for name in self._hidden:
            del observations[name]
        observation: Any = observations
        if self._has_bare_observation:
            observation = observations[OBSERVATION]
        elif self._is_nested:
            observation = nesting.nest(observations, nesting.SEPARATOR)
        timestep = _new(dm_env.TimeStep, (step_type, reward, discount, observation))
        hook = self._after
        return timestep if hook is None else hook(timestep)

    def _most_ahead(self, ahead: int) -> int:
        """Return the maximum number of pending steps, below `ahead` if answers are large."""
        # Unread answers stay in memory; at least one step must be possible.
        return max(1, min(ahead, AHEAD_BYTES // max(1, self._codec.answer_bytes)))

    def _interpret_reset(self, response: dm_env_rpc_pb2.ResetResponse) -> None:
        self._adopt(response.specs)

    def _nest(self, flat: dict[str, Any]) -> dict[str, Any]:
        return nesting.nest(flat, nesting.SEPARATOR) if self._is_nested else flat


@dataclasses.dataclass(frozen=True)
class _Adopted:
    """State derived from an agent's specs and its requested observations."""

    actions: SpecManager
    observations: SpecManager
    codec: StepCodec
    num_rows: int | None
    """The number of rows of a batched world, or None for other worlds."""

    hidden: set[str]
    """The names of requested observations that are left out of TimeSteps."""

    is_nested: bool
    reward_spec: dm_env_specs.Array | None
    discount_spec: dm_env_specs.Array | None
    observation_specs: dict[str, dm_env_specs.Array]
    action_specs: dict[str, dm_env_specs.Array]


# Shared by environments with the same specs, while one of them exists. 1,000 environments take
# 16 KB each instead of 28, and a step takes 1.1 to 1.4 times as long as with 16 environments,
# instead of 2.3 times, because it stays in the processor's caches.
_shared: weakref.WeakValueDictionary[Any, _Adopted] = weakref.WeakValueDictionary()


def _adopted(
    new: dm_env_rpc_pb2.ActionObservationSpecs,
    requested: Sequence[str] | AutoObservations,
    nested_tensors: bool,
    limits: Limits,
) -> _Adopted:
    asked = requested if isinstance(requested, AutoObservations) else tuple(requested)
    key = (new.SerializeToString(deterministic=True), asked, nested_tensors, limits)
    found = _shared.get(key)
    if found is not None:
        return found
    made = _adopt(new, asked, nested_tensors, limits)
    _shared[key] = made
    return made


def _adopt(
    new: dm_env_rpc_pb2.ActionObservationSpecs,
    requested: Sequence[str] | AutoObservations,
    nested_tensors: bool,
    limits: Limits,
) -> _Adopted:
    actions = SpecManager(new.actions, "action", limits)
    observations = SpecManager(new.observations, "observation", limits)
    visible = visible_names(observations, requested)
    asked = {*visible, *({REWARD, DISCOUNT} & observations.names())}
    actions.check_sizes(actions.names())
    observations.check_sizes(asked)
    by_name = {
        name: specs.tensor_spec_to_dm_env_spec(observations.name_to_spec(name))
        for name in observations.names()
        if name in asked
    }
    uids = sorted(map(observations.name_to_uid, asked))
    hidden = asked - set(visible)
    return _Adopted(
        actions,
        observations,
        StepCodec(actions, observations, uids, limits),
        batches.num_rows(observations.specs_by_name),
        hidden,
        nested_tensors and nesting.has_levels((*visible, *actions.names())),
        by_name.get(REWARD),
        by_name.get(DISCOUNT),
        {name: spec for name, spec in by_name.items() if name not in hidden},
        {
            name: specs.tensor_spec_to_dm_env_spec(actions.name_to_spec(name))
            for name in actions.names()
        },
    )


def _converter(kind: ArrayKind) -> Callable[[dm_env.TimeStep], dm_env.TimeStep]:
    # Without a reference to the adaptor, whose cycle would wait for the garbage collector.
    return functools.partial(array_kinds.from_numpy, kind=kind, where="the TimeStep")


_OWN_REWARD, _OWN_DISCOUNT = BaseAdaptor.reward, BaseAdaptor.discount
