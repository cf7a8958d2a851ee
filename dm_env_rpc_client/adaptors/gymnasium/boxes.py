"""Boxes of integers, and boxes whose bounds take no array. Needs `gymnasium`.

A few bytes can describe a Box of any size. Gymnasium has four arrays of its shape for the bounds;
here they are views of one element each where they would take more than `Room` has.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate

from dm_env_rpc_client.errors import ProtocolError
from dm_env_rpc_client.tensors.limits import MAX_MESSAGE_BYTES, Limits, largest_array

__all__ = [
    "ExactBox",
    "Room",
    "WideBox",
    "WideExactBox",
    "multi_binary",
    "one_bound",
    "uniform_box",
]

_ARRAY_BYTES = 1 << 20
"""What the bounds of all spaces of one description may take as arrays; those of a batch of N rows
take N times as much."""

_EXPANDED_BYTES = 16 << 20
"""What all spaces of one description may take beyond its size."""

_CHARACTER_BYTES = 250
"""What a character of a Text takes."""

_SIDES = ("low", "high", "bounded_below", "bounded_above")


class Room:
    """The memory that the spaces of one description may take.

    Args:
      limits: of the messages in which the elements of the spaces arrive; None for spaces of an
        environment of this process.
    """

    def __init__(self, limits: Limits | None = None):
        self._limits = limits
        self._array_bytes = _ARRAY_BYTES
        self._expanded_bytes = _EXPANDED_BYTES
        self._element_bytes = 0

    @contextlib.contextmanager
    def element(self) -> Iterator[None]:
        """A context in which the parts of one element are read, which arrive together."""
        others, self._element_bytes = self._element_bytes, 0
        yield
        self._element_bytes = others

    def check_element(self, shape: tuple[int, ...], dtype: np.dtype[Any], where: str) -> None:
        """Raises ProtocolError if no message can have an element of a space.

        Args:
          shape: of an element, or of a part of one.
          dtype: the dtype.
          where: what the space is called in errors.
        """
        # NumPy counts an empty dimension as one, too.
        size = math.prod(max(length, 1) for length in shape) * dtype.itemsize
        most = MAX_MESSAGE_BYTES if self._limits is None else largest_array(self._limits)
        self._element_bytes += size
        if self._element_bytes > most:
            together = "," if size > most else f", with the parts before it {self._element_bytes},"
            raise ProtocolError(
                f"{where}: an element of shape {list(shape)} and dtype {dtype} takes {size} bytes"
                f"{together} and a message with such an array has at most {most} "
                "(Limits.message_bytes and expanded_bytes); raise the limits, or have the server "
                "use smaller arrays"
            )

    def takes(self, size: int) -> bool:
        """Whether arrays of `size` bytes still fit, which are then taken."""
        fits = size <= self._array_bytes
        self._array_bytes -= size if fits else 0
        return fits

    def expand(self, size: int) -> None:
        """Takes memory beyond that of the description; ValueError if there is not as much."""
        self._expanded_bytes -= size
        if self._expanded_bytes < 0:
            raise ValueError(f"its spaces would take {size} bytes more than their description")

    def take_characters(self, count: int) -> None:
        """Takes the memory of the characters of a Text; ValueError."""
        self.expand(count * _CHARACTER_BYTES)


class ExactBox(spaces.Box):
    """A Box of integers that samples integers.

    A Box samples floats and rounds them down. That misses large numbers, may exceed the upper
    bound, and makes a NumPy scalar of a sample without dimensions, which the Box then does not
    accept as an element.
    """

    def sample(self, mask: None = None, probability: None = None) -> npt.NDArray[Any]:
        """Draws integers uniformly from the whole range; a Box has no masks."""
        low, high, dtype = (cast("Any", value) for value in (self.low, self.high, self.dtype))
        return np.asarray(self.np_random.integers(low, high, dtype=dtype, endpoint=True))


class _Wide(spaces.Box):
    """A Box whose bounds are views of one element each, which cannot be written.

    Everything else is that of a Box: elements, samples, and what it is equal to.

    Args:
      low: the lower bound of all elements.
      high: the upper bound of all.
      shape: the shape, of at least one dimension.
      dtype: the dtype.
    """

    def __init__(self, low: Any, high: Any, shape: tuple[int, ...], dtype: Any):
        one = (1,) * len(shape)
        super().__init__(np.full(one, low, dtype), np.full(one, high, dtype), dtype=dtype)
        self._shape = shape
        for side in _SIDES:
            setattr(self, side, np.broadcast_to(getattr(self, side), shape))

    def bound_by(self, side: str, is_bounded: bool) -> None:
        """Says whether the elements are bounded on one side."""
        setattr(self, side, np.broadcast_to(np.array(is_bounded), self.shape))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Wide):
            return super().__eq__(other)
        return (
            self.shape == other.shape
            and self.dtype == other.dtype
            and all(
                np.allclose(getattr(self, side).flat[0], getattr(other, side).flat[0])
                for side in ("low", "high")
            )
        )

    __hash__ = None  # type: ignore[assignment]  # as that of a Box

    def __reduce__(self) -> tuple[Any, ...]:
        # A view is copied with all its elements.
        ends = [getattr(self, side).flat[0] for side in _SIDES]
        others = {key: value for key, value in self.__dict__.items() if key not in _SIDES}
        return _wide, (type(self), self.shape, self.dtype, *ends), others


class WideBox(_Wide):
    """A Box of many elements with one lower and one upper bound."""


class WideExactBox(_Wide, ExactBox):
    """The same of integers that are sampled as such."""


def _wide(
    kind: type[_Wide], shape: tuple[int, ...], dtype: Any, low: Any, high: Any, *bounded: Any
) -> _Wide:
    made = kind(low, high, shape, dtype)
    for side, is_bounded in zip(_SIDES[2:], bounded, strict=True):
        made.bound_by(side, bool(is_bounded))
    return made


def uniform_box(
    low: Any, high: Any, shape: tuple[int, ...], dtype: np.dtype[Any], room: Room, exact: bool
) -> spaces.Box:
    """Returns a Box with one lower and one upper bound for all elements.

    Args:
      low: the lower bound; of integers, not infinite.
      high: the upper bound.
      shape: the shape.
      dtype: the dtype.
      room: what the bounds may take.
      exact: whether it is an `ExactBox`.
    """
    size = 2 * math.prod(shape) * (dtype.itemsize + 1)
    if not shape or room.takes(size):
        lows, highs = np.full(shape, low, dtype), np.full(shape, high, dtype)
        kind: Any = ExactBox if exact else spaces.Box
        made: spaces.Box = kind(lows, highs, dtype=dtype.type)
        return made
    return (WideExactBox if exact else WideBox)(low, high, shape, dtype.type)


def one_bound(space: spaces.Box, side: str) -> Any:
    """Returns the bounds of a Box: the only one of a wide Box, otherwise the array."""
    bound = getattr(space, side)
    return bound.flat[0] if isinstance(space, _Wide) else bound


class WideMultiBinary(spaces.MultiBinary):
    """A MultiBinary of many elements, a batch of which is a wide Box."""


def multi_binary(n: Any, shape: tuple[int, ...], room: Room) -> spaces.MultiBinary:
    """Returns a MultiBinary.

    Args:
      n: its argument.
      shape: its shape.
      room: what the bounds of a batch of it may take.
    """
    is_small = room.takes(4 * math.prod(shape))
    return (spaces.MultiBinary if is_small else WideMultiBinary)(n)


@batch_space.register(WideMultiBinary)
def _batch_wide_multi_binary(space: WideMultiBinary, n: int = 1) -> WideBox:
    return WideBox(0, 1, (n, *space.shape), np.int8)


@batch_space.register(ExactBox)
def _batch_exact_box(space: ExactBox, n: int = 1) -> ExactBox:
    low, high = (np.repeat(bound[np.newaxis], n, axis=0) for bound in (space.low, space.high))
    return ExactBox(low, high, dtype=space.dtype.type)


@batch_space.register(WideBox)
@batch_space.register(WideExactBox)
def _batch_wide_box(space: Any, n: int = 1) -> Any:
    ends = [getattr(space, side).flat[0] for side in _SIDES]
    return _wide(type(space), (n, *space.shape), space.dtype.type, *ends)


for _kind in (ExactBox, WideBox, WideExactBox):
    iterate.register(_kind, iterate.dispatch(spaces.Box))
iterate.register(WideMultiBinary, iterate.dispatch(spaces.MultiBinary))
