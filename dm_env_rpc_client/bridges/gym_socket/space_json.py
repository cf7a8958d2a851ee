"""The spaces of gym-socket-api and their JSON form ("Spaces" in the protocol document).

Infinite bounds are written as 1e30, since JSON has no infinity, and read back as infinite.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dm_env_rpc_client.errors import ProtocolError

__all__ = [
    "MAX_ELEMENTS",
    "Box",
    "Discrete",
    "MultiBinary",
    "MultiDiscrete",
    "Space",
    "Tuple",
    "UnknownSpace",
    "from_json",
    "to_json",
]

MAX_ELEMENTS = 1 << 20
"""Elements of a space, all subspaces together."""

_INFINITE = 1e30
_EXACT = 1 << 53


class Box:
    """Arrays within bounds, each of which is inclusive.

    Args:
      low: float64, of the shape of the arrays.
      high: the same.
    """

    def __init__(self, low: npt.ArrayLike, high: npt.ArrayLike):
        self.low = np.array(low, np.float64)
        self.high = np.array(high, np.float64)
        self.low.setflags(write=False)
        self.high.setflags(write=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the arrays."""
        return self.low.shape

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Box)
            and np.array_equal(self.low, other.low)
            and np.array_equal(self.high, other.high)
        )

    __hash__ = None  # type: ignore[assignment]  # its arrays have no hash either

    def __repr__(self) -> str:
        return f"Box(low={self.low.tolist()}, high={self.high.tolist()})"


@dataclasses.dataclass(frozen=True)
class Discrete:
    """The integers from 0 to n - 1."""

    n: int


@dataclasses.dataclass(frozen=True)
class MultiBinary:
    """Vectors of n elements, each 0 or 1."""

    n: int


@dataclasses.dataclass(frozen=True)
class MultiDiscrete:
    """Vectors of integers, each from its `low` to its `high` inclusive."""

    low: tuple[int, ...]
    high: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Tuple:
    """One element of each subspace."""

    subspaces: tuple[Space, ...]


@dataclasses.dataclass(frozen=True)
class UnknownSpace:
    """A space that the protocol does not describe; only the name of its type is sent."""

    type: str


Space: TypeAlias = "Box | Discrete | MultiBinary | MultiDiscrete | Tuple | UnknownSpace"


def to_json(space: Space) -> dict[str, Any]:
    """Returns the JSON value of a space."""
    if isinstance(space, Box):
        return {
            "type": "Box",
            "shape": list(space.shape),
            "low": _finite(space.low),
            "high": _finite(space.high),
        }
    if isinstance(space, MultiDiscrete):
        return {"type": "MultiDiscrete", "low": list(space.low), "high": list(space.high)}
    if isinstance(space, Tuple):
        return {"type": "Tuple", "subspaces": [to_json(part) for part in space.subspaces]}
    if isinstance(space, UnknownSpace):
        return {"type": space.type}
    return {"type": type(space).__name__, "n": space.n}


def from_json(value: Any, where: str) -> Space:
    """Returns the space of a JSON value.

    Args:
      value: what `bounded_json.decode` returned.
      where: the name of the space in error messages.

    Returns:
      The space; an `UnknownSpace` if its type is unknown.

    Raises:
      ProtocolError: it does not describe a space, or one of more than MAX_ELEMENTS elements.
    """
    space = _read(value, where)
    _check_size(_size(space), where)
    return space


def _read(value: Any, where: str) -> Space:
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
        raise ProtocolError(f'{where}: a space is an object with a "type", got {_short(value)}')
    name = value["type"]
    reader = _READERS.get(name)
    return UnknownSpace(name) if reader is None else reader(value, f"{where}: {name}")


def _read_box(value: Mapping[str, Any], where: str) -> Box:
    shape = tuple(_integers(value, "shape", where))
    if len(shape) > 32 or any(size < 0 or size > MAX_ELEMENTS for size in shape):
        raise ProtocolError(f"{where}: invalid shape {_short(list(shape))}")
    size = math.prod(shape)
    _check_size(size, where)
    low = _numbers(value, "low", size, where)
    high = _numbers(value, "high", size, where)
    low[low <= -_INFINITE] = -np.inf
    high[high >= _INFINITE] = np.inf
    if not np.all(low <= high):  # NaN fails every comparison.
        raise ProtocolError(f"{where}: a low is above its high, or is not a number")
    return Box(low.reshape(shape), high.reshape(shape))


def _read_discrete(value: Mapping[str, Any], where: str) -> Discrete:
    return Discrete(_count(value, where, 1, 1 << 63))


def _read_multi_binary(value: Mapping[str, Any], where: str) -> MultiBinary:
    return MultiBinary(_count(value, where, 0, MAX_ELEMENTS))


def _read_multi_discrete(value: Mapping[str, Any], where: str) -> MultiDiscrete:
    low = tuple(_integers(value, "low", where))
    high = tuple(_integers(value, "high", where))
    if len(low) != len(high) or any(a > b for a, b in zip(low, high, strict=True)):
        raise ProtocolError(f"{where}: low {_short(low)} and high {_short(high)} do not match")
    if any(not -(1 << 63) <= bound < 1 << 63 for bound in low + high):
        raise ProtocolError(f"{where}: a bound does not fit a 64-bit integer")
    return MultiDiscrete(low, high)


def _read_tuple(value: Mapping[str, Any], where: str) -> Tuple:
    parts = value.get("subspaces")
    if not isinstance(parts, list):
        raise ProtocolError(f'{where}: "subspaces" is a list of spaces, got {_short(parts)}')
    return Tuple(tuple(_read(part, f"{where}[{index}]") for index, part in enumerate(parts)))


_READERS: dict[str, Callable[[Mapping[str, Any], str], Space]] = {
    "Box": _read_box,
    "Discrete": _read_discrete,
    "MultiBinary": _read_multi_binary,
    "MultiDiscrete": _read_multi_discrete,
    "Tuple": _read_tuple,
}


def _finite(bounds: npt.NDArray[np.float64]) -> list[int | float]:
    clipped = np.clip(bounds, -_INFINITE, _INFINITE).ravel().tolist()
    return [int(x) if abs(x) < _EXACT and x.is_integer() else x for x in clipped]


def _count(value: Mapping[str, Any], where: str, least: int, most: int) -> int:
    n: Any = value.get("n")
    if not _is_integer(n) or not least <= n <= most:
        raise ProtocolError(f'{where}: "n" is an integer from {least} to {most}, got {_short(n)}')
    return int(n)


def _integers(value: Mapping[str, Any], key: str, where: str) -> list[int]:
    elements = value.get(key)
    if not isinstance(elements, list) or not all(map(_is_integer, elements)):
        raise ProtocolError(f'{where}: "{key}" is a list of integers, got {_short(elements)}')
    return [int(element) for element in elements]


def _numbers(value: Mapping[str, Any], key: str, size: int, where: str) -> npt.NDArray[np.float64]:
    elements = value.get(key)
    if not isinstance(elements, list) or len(elements) != size:
        raise ProtocolError(
            f'{where}: "{key}" is a flat list of {size} numbers, according to the shape, got '
            f"{_short(elements)}"
        )
    if not {type(element) for element in elements} <= {int, float}:
        raise ProtocolError(f'{where}: "{key}" has elements that are not numbers')
    try:
        return np.array(elements, np.float64)
    except OverflowError:
        raise ProtocolError(f'{where}: "{key}" has a number that does not fit a float64') from None


def _is_integer(value: Any) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or (
        # Languages with one type of number may write 5.0.
        isinstance(value, float) and value.is_integer()
    )


def _size(space: Space) -> int:
    if isinstance(space, Tuple):
        return 1 + sum(map(_size, space.subspaces))
    if isinstance(space, Box):
        return space.low.size
    if isinstance(space, MultiBinary):
        return space.n
    return len(space.low) if isinstance(space, MultiDiscrete) else 1


def _check_size(size: int, where: str) -> None:
    if size > MAX_ELEMENTS:
        raise ProtocolError(f"{where}: {size} elements; at most {MAX_ELEMENTS} are allowed")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
