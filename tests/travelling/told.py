"""What a player is told of an environment, call by call, and how two tales differ."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Call: TypeAlias = str
"""`R`: a reset. `s`: a step. `r`: what begins the next episode after an end, a reset or a step."""


class Opened(NamedTuple):
    """The environment was made; its spaces, or its specs by flat name in their order."""

    actions: Any
    observations: Any


class Told(NamedTuple):
    """What `reset` or `step` of Gymnasium returned."""

    observation: Any
    info: Any
    reward: Any = None
    terminated: Any = None
    truncated: Any = None


class Timed(NamedTuple):
    """A TimeStep of dm_env. Its observations are nested; their order counts."""

    step_type: int
    reward: Any
    discount: Any
    observation: Any


class Failed(NamedTuple):
    """An error. Of an expected one each of `parts` is in the text."""

    code: str
    text: str = ""
    parts: tuple[str, ...] = ()
    """The kind and the place."""
    details: tuple[str, ...] = ()
    """What this package's server says of the value itself."""


class Lost(NamedTuple):
    """Another row failed: the row has taken its step, and the caller got an error instead."""


Event: TypeAlias = Opened | Told | Timed | Failed | Lost

Tale: TypeAlias = list[Event]
"""What was told of one environment: it was opened, and then an event for each call."""


def kept(value: Any) -> Any:
    """Copies a value that a player was given, and spoils the arrays in the original.

    What a caller does with its values must not change any other.
    """
    taken = copy.deepcopy(value)
    for array in _arrays(value):
        if array is not np.ma.masked and array.flags.writeable and array.dtype.kind in "iuf":
            array.fill(77)
    return taken


def _arrays(value: Any) -> Iterator[np.ndarray[Any, Any]]:
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            for part in value.flat:
                yield from _arrays(part)
        else:
            yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _arrays(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _arrays(part)


def difference(found: Any, expected: Any, place: str = "") -> str:
    """Returns where two values differ first, and how; nothing if they are the same.

    Types, dtypes but for the order of bytes, shapes and the order of mappings count; NaN is itself.
    """
    if isinstance(expected, Failed):
        return _other_failure(found, expected, place)
    if type(found) is not type(expected):
        kinds = f"{type(found).__name__}, not {type(expected).__name__}"
        return f"{place}: {kinds}: {found!r}, not {expected!r}"
    if isinstance(expected, Mapping):
        if list(found) != list(expected):
            return f"{place}: keys {list(found)}, not {list(expected)}"
        return _first(difference(found[key], expected[key], f"{place}.{key}") for key in expected)
    if isinstance(expected, list | tuple):
        if len(found) != len(expected):
            return f"{place}: {found!r}, not {expected!r}"
        names = getattr(expected, "_fields", range(len(expected)))
        return _first(map(difference, found, expected, (f"{place}.{name}" for name in names)))
    if isinstance(expected, np.ndarray | np.generic):
        return _other_array(found, expected, place)
    is_same = found == expected or (found != found and expected != expected)
    return "" if is_same else f"{place}: {found!r}, not {expected!r}"


def _other_failure(found: Any, expected: Failed, place: str) -> str:
    if not isinstance(found, Failed):
        return f"{place}: no error: {found!r}; expected {expected}"
    if found.code != expected.code:
        return f"{place}: {found}; expected {expected}"
    parts = (expected.text, *expected.parts, *expected.details)
    missing = [part for part in parts if part not in found.text]
    return f"{place}: {found}; without {missing}" if missing else ""


def _other_array(found: Any, expected: Any, place: str) -> str:
    dtypes = [each.dtype.newbyteorder("=") for each in (found, expected)]
    if dtypes[0] != dtypes[1] or found.shape != expected.shape:
        return f"{place}: {found!r}, not {expected!r}"
    if isinstance(expected, np.ma.MaskedArray) and expected is not np.ma.masked:
        parts = zip(_parts_of_masked(found), _parts_of_masked(expected), strict=True)
        return _first(difference(one, other, f"{place} masked") for one, other in parts)
    if expected.dtype == object:
        return difference(np.ravel(found).tolist(), np.ravel(expected).tolist(), place)
    if expected is np.ma.masked:
        return "" if found is expected else f"{place}: {found!r} is not masked"
    is_same = np.array_equal(found, expected, equal_nan=expected.dtype.kind in "fcmM")
    return "" if is_same else f"{place}: {found!r}, not {expected!r}"


def _parts_of_masked(array: Any) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(array.data), np.ma.getmaskarray(array), np.asarray(array.fill_value)]


def _first(texts: Iterator[str]) -> str:
    return next(filter(None, texts), "")
