"""The description of an environment after `init`, and its conversion to dm_env specs.

The classes in this module only hold data that was read from C or received from a child process.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from dm_env import specs

from dm_env_rpc_client import arguments
from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.tensors import nesting
from dm_env_rpc_client.tensors.specs import VariableArray


def text_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return settings as strings, keyed by flat name.

    Args:
      settings: values by name, nested or with periods in the names. A str is unchanged, a bool
        becomes "true" or "false", and an int or float is written in its shortest exact form.

    Raises:
      SpecError: a value has an unsupported type, or two values have the same name.
    """
    arguments.mapping("settings", settings, expected="a mapping of names to values")
    flat = nesting.flatten_dict(settings, nesting.SEPARATOR, strict=False)
    return {name: _text(name, value) for name, value in flat.items()}


def _text(name: str, value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return repr(value)
    raise SpecError(
        f"setting {name!r} is of type {type(value).__name__}; expected a str, bool, int or "
        "float, which is passed to the library as a string"
    )


class ObservationType(enum.Enum):
    """The type of an observation's elements; the value of each member is the NumPy dtype."""

    DOUBLES = np.dtype(np.float64)
    BYTES = np.dtype(np.uint8)
    STRING = np.dtype(object)
    INT32S = np.dtype(np.int32)
    INT64S = np.dtype(np.int64)

    @property
    def item_bytes(self) -> int:
        """The size of one element of the payload, in bytes (1 for a string)."""
        return 1 if self is ObservationType.STRING else int(self.value.itemsize)


def checked_size(shape: Iterable[int], item_bytes: int, most: int, where: str) -> int:
    """Return the size of an array in bytes, which is 0 if any dimension is 0.

    Raises:
      ProtocolError: a length is negative, or the array needs more than `most` bytes.
    """
    size = item_bytes
    sizes = list(shape)
    for length in sizes:
        if length < 0:
            raise ProtocolError(f"{where}: shape {sizes} has a negative size")
        # Other lengths count despite a 0: NumPy rejects an array whose strides overflow.
        size *= length or 1
    # Python's integers do not overflow, so this also rejects sizes that would wrap in C.
    if size > most:
        raise ProtocolError(
            f"{where}: shape {sizes} takes {size} bytes; at most {most} are allowed "
            "(Limits.message_bytes)"
        )
    return 0 if 0 in sizes else size


@dataclasses.dataclass(frozen=True)
class ObservationDescription:
    """The description of an observation.

    Attributes:
      name: the name of the observation.
      type: the type of its elements.
      shape: its shape, with 0 for variable lengths; None if even the number of dimensions varies.
      is_given: whether the shape comes from `shapes` instead of the library.
    """

    name: str
    type: ObservationType
    shape: tuple[int, ...] | None
    is_given: bool = False

    @property
    def source(self) -> str:
        """Where the shape was declared, as a phrase for error messages."""
        return "as given in shapes" if self.is_given else "as declared by observation_spec"

    @property
    def fixed_bytes(self) -> int:
        """The fixed size of the observation in bytes, or 0 if the size varies."""
        if self.shape is None or 0 in self.shape or self.type is ObservationType.STRING:
            return 0
        return math.prod(self.shape) * self.type.item_bytes

    @property
    def is_group(self) -> bool:
        """Whether the observation is sent as `<name>.values` and `<name>.shape`; see `specs`."""
        if self.type is ObservationType.STRING:
            return False
        return self.shape is None or self.shape.count(0) > 1

    def specs(self) -> dict[str, specs.Array]:
        """Return dm_env specs, keyed by flat name.

        The protocol allows one variable dimension ("Variable lengths" in the protocol overview).
        An observation with several variable dimensions, or with a varying number of dimensions, is
        split into two arrays: `<name>.values`, flat in row-major order, and `<name>.shape`, int32.
        """
        dtype = self.type.value
        if self.type is ObservationType.STRING:
            return {self.name: specs.StringArray((), name=self.name)}
        if self.is_group:
            values, shape = f"{self.name}.values", f"{self.name}.shape"
            shape_spec: specs.Array = VariableArray((-1,), np.int32, shape)
            if self.shape is not None:
                shape_spec = specs.Array((len(self.shape),), np.int32, shape)
            return {values: VariableArray((-1,), dtype, values), shape: shape_spec}
        assert self.shape is not None, "without a shape it is a group"
        if 0 in self.shape:
            variable = tuple(size or -1 for size in self.shape)
            return {self.name: VariableArray(variable, dtype, self.name)}
        return {self.name: specs.Array(self.shape, dtype, self.name)}

    def value_conforms(self, value: Any) -> bool:
        """Whether a Python value conforms to this description."""
        if self.type is ObservationType.STRING:
            return isinstance(value, str)
        if not isinstance(value, np.ndarray) or value.dtype != self.type.value:
            return False
        return self.shape is None or (
            len(value.shape) == len(self.shape)
            and all(given in (0, size) for given, size in zip(self.shape, value.shape, strict=True))
        )


class DiscreteAction(NamedTuple):
    """The description of a discrete action, with inclusive bounds."""

    name: str
    minimum: int
    maximum: int


class ContinuousAction(NamedTuple):
    """The description of a continuous action, with inclusive bounds."""

    name: str
    minimum: float
    maximum: float


BoundedAction: TypeAlias = DiscreteAction | ContinuousAction


class Event(NamedTuple):
    """The description of a type of event.

    Attributes:
      id: the number of the event type.
      name: the name of the event type.
      observations: the observations of the event, owned by the caller: arrays (float64, uint8,
        int32 or int64, of any shape) and `str`.
    """

    id: int
    name: str
    observations: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Description:
    """The description of an environment.

    Attributes:
      name: the environment's name.
      discrete: discrete actions, int32.
      continuous: continuous actions, float64.
      texts: names of text actions.
      observations: observations, in the order of the library.
      events: names of the event types, by ID.
      fps: recommended steps per second of wall-clock time; None if the version of the interface
        has no `fps`.

    Raises:
      ProtocolError: two actions or two observations share a name, or bounds are NaN or
        reversed.
    """

    name: str
    discrete: tuple[DiscreteAction, ...]
    continuous: tuple[ContinuousAction, ...]
    texts: tuple[str, ...]
    observations: tuple[ObservationDescription, ...]
    events: tuple[str, ...]
    fps: int | None

    def __post_init__(self) -> None:
        _check_unique([*(a.name for a in self._bounded), *self.texts], "action")
        flat = [name for observation in self.observations for name in observation.specs()]
        _check_unique(flat, "observation")
        for action in self._bounded:
            if not action.minimum <= action.maximum:  # NaN compares false.
                raise ProtocolError(
                    f"action {action.name!r} has the bounds {action.minimum} to "
                    f"{action.maximum}; expected two numbers, the first no greater than the second"
                )

    @property
    def fixed_bytes(self) -> int:
        """The total size of all fixed-size observations, in bytes."""
        return sum(observation.fixed_bytes for observation in self.observations)

    @property
    def _bounded(self) -> tuple[BoundedAction, ...]:
        return self.discrete + self.continuous

    def action_specs(self) -> dict[str, specs.Array]:
        """Return the specs of the actions, keyed by name; all actions are scalars."""
        by_name: dict[str, specs.Array] = {}
        for name, low, high in self.discrete:
            if low == 0 and high < np.iinfo(np.int32).max:
                by_name[name] = specs.DiscreteArray(high + 1, np.int32, name)
            else:
                by_name[name] = specs.BoundedArray((), np.int32, low, high, name)
        for name, least, most in self.continuous:
            by_name[name] = specs.BoundedArray((), np.float64, least, most, name)
        for name in self.texts:
            by_name[name] = specs.StringArray((), name=name)
        return by_name


def _check_unique(names: list[str], what: str) -> None:
    for name, count in collections.Counter(names).items():
        if not name:
            raise ProtocolError(f"an {what} has an empty name")
        if count > 1:
            raise ProtocolError(f"{count} {what}s are named {name!r}; names must be distinct")
