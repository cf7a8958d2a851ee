"""Validation of function arguments, with one function for each kind of value.

A value that has the wrong type or is out of range raises a SpecError, which is also a ValueError;
an unknown keyword argument raises a plain TypeError. The error message states the name of the
argument, the expected values and the received value. NumPy scalars count as numbers, but bools do
not. Each function returns the valid value and converts a NumPy scalar to a Python number.

Times are given in seconds and must be finite and at most `MOST_SECONDS`. A time limit, such as
`timeout`, must be greater than 0, because no transport answers instantly; None means no limit. A
grace period can be 0. A timeout for waiting for an event can also be 0, in which case the event is
checked only once.
"""

from __future__ import annotations

import numbers
import os
import reprlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from dm_env_rpc_client.errors import SpecError

MOST_SECONDS = (1 << 31) // 1000
"""The longest valid time, in seconds: poll(2) takes its timeout in milliseconds, as a C int."""

NO_LIMIT = "None for no limit"
"""The description of None in the error messages for most limits."""

_DAY_SECONDS = 24 * 60 * 60

Seconds = TypeVar("Seconds", float, float | None)
Count = TypeVar("Count", int, int | None)
Flag = TypeVar("Flag", bool, bool | None)
Given = TypeVar("Given")

_MOST_CHARACTERS = 250

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80


def seconds(name: str, value: Seconds, *, least: float | None = None, none: str = "") -> Seconds:
    """Validate a time in seconds and return it.

    Args:
      name: the name of the argument.
      value: the given value.
      least: the shortest time, such as 0; None to require more than 0.
      none: the meaning of None, such as `NO_LIMIT`; empty if None is not allowed.

    Raises:
      SpecError: the value is not a finite number of seconds in the range.
    """
    if value is None and none:
        return value
    if not _is_number(value, numbers.Real):
        raise refused(name, "a number of seconds", value, none)
    number: Any = value
    if _is_of_numpy(value):
        number = float(number)  # Comparing a small NumPy type with the bound would overflow.
    if number > MOST_SECONDS and number != float("inf"):
        days = MOST_SECONDS // _DAY_SECONDS
        raise refused(name, f"at most {MOST_SECONDS} seconds ({days} days)", value, none)
    if not (number > 0 if least is None else number >= least) or number > MOST_SECONDS:
        bound = "more than 0" if least is None else f"at least {least:g}"
        raise refused(name, f"finite and {bound}", value, none)
    return number if isinstance(number, int | float) else float(number)


def amount(name: str, value: Seconds, *, none: str = "") -> Seconds:
    """Validate a finite number greater than 0, such as a rate, and return it as a float.

    Args:
      name: the name of the argument.
      value: the given value.
      none: the meaning of None, such as `NO_LIMIT`; empty if None is not allowed.

    Raises:
      SpecError: the value is not a finite number greater than 0.
    """
    if value is None and none:
        return value
    number: Any = value
    if not _is_number(value, numbers.Real) or not 0 < number < float("inf"):
        raise refused(name, "a finite number greater than 0", value, none)
    return float(number)


def count(
    name: str, value: Count, *, least: int = 1, most: int | None = None, none: str = ""
) -> Count:
    """Validate an integer and return it.

    Args:
      name: the name of the argument.
      value: the given value.
      least: the smallest number.
      most: the largest number; None for no upper bound.
      none: the meaning of None, such as `NO_LIMIT`; empty if None is not allowed.

    Raises:
      SpecError: the value is not an integer in the range.
    """
    if value is None and none:
        return value
    number: Any = value
    is_integer = _is_number(value, numbers.Integral)
    if not is_integer or number < least or (most is not None and number > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise refused(name, f"an integer {bounds}", value, none)
    return int(number)


def flag(name: str, value: Flag, *, none: str = "") -> Flag:
    """Validate a bool and return it, or raise SpecError for anything else, even 0, 1 or "no".

    Args:
      name: the name of the argument.
      value: the given value.
      none: the meaning of None; empty if None is not allowed.
    """
    if value is None and none:
        return value
    is_flag = _is_of_numpy(value) and type(value).__name__ in ("bool", "bool_")
    if not is_flag and not isinstance(value, bool):
        raise refused(name, "True or False", value, none)
    return bool(value)


def text(name: str, value: Given, *, expected: str = "text", none: str = "") -> Given:
    """Validate a non-empty str and return it, or raise SpecError for anything else.

    Args:
      name: the name of the argument.
      value: the given value.
      expected: the description of valid values in the error message.
      none: the meaning of None; empty if None is not allowed.
    """
    if not (value is None and none) and not (isinstance(value, str) and value):
        raise refused(name, expected, value, none)
    return value


def path(name: str, value: Given, *, none: str = "") -> Given:
    """Validate the path of a file or folder, a str or `os.PathLike[str]`, and return it.

    Args:
      name: the name of the argument.
      value: the given value.
      none: the meaning of None; empty if None is not allowed.

    Raises:
      SpecError: the path is empty or has another type.
    """
    if value is None and none:
        return value
    given = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(given, str) or not given:
        raise refused(name, "a path", value, none)
    return value


def mapping(name: str, value: Given, *, expected: str = "a mapping", none: str = "") -> Given:
    """Validate a Mapping, such as a dict, and return it, or raise SpecError for another type.

    Args:
      name: the name of the argument.
      value: the given value.
      expected: the description of valid values in the error message.
      none: the meaning of None; empty if None is not allowed.
    """
    return instance(name, value, Mapping, expected, none=none)


def names(
    name: str, value: Given, *, expected: str = "a sequence of names", none: str = ""
) -> Given:
    """Validate a collection of strings and return it; anything else, even a str, raises SpecError.

    Args:
      name: the name of the argument.
      value: the given value.
      expected: the description of valid values in the error message.
      none: the meaning of None; empty if None is not allowed.
    """
    if value is None and none:
        return value
    found: Any = value
    is_collection = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
    if not is_collection or not all(isinstance(each, str) for each in found):
        raise refused(name, expected, value, none)
    return value


def one_of(name: str, value: Given, known: Sequence[object]) -> Given:
    """Return `value` if it is a str in `known`, or raise a SpecError that lists the choices."""
    if not isinstance(value, str) or value not in known:
        listed = ", ".join(map(repr, known))
        raise SpecError(f"unknown {name} {shown(value)}; choose one of {listed}")
    return value


def function(name: str, value: Given, *, expected: str = "a function", none: str = "") -> Given:
    """Validate a callable and return it, or raise SpecError for anything else.

    Args:
      name: the name of the argument.
      value: the given value.
      expected: the description of valid values in the error message.
      none: the meaning of None; empty if None is not allowed.
    """
    if not (value is None and none) and not callable(value):
        raise refused(name, expected, value, none)
    return value


def instance(
    name: str, value: Given, kind: type | tuple[type, ...], expected: str, *, none: str = ""
) -> Given:
    """Validate an instance of a class and return it, or raise SpecError for another type.

    Args:
      name: the name of the argument.
      value: the given value.
      kind: the class, or a tuple of classes.
      expected: the description of valid values in the error message.
      none: the meaning of None; empty if None is not allowed.
    """
    if not (value is None and none) and not isinstance(value, kind):
        raise refused(name, expected, value, none)
    return value


def refused(name: str, expected: str, value: object, none: str = "") -> SpecError:
    """Return the error for an invalid argument.

    Args:
      name: the name of the argument.
      expected: a description of valid values.
      value: the given value.
      none: the meaning of None; empty if None is not allowed.
    """
    or_none = f", or {none}" if none else ""
    return SpecError(f"{name} must be {expected}{or_none}, got {shown(value)}")


def shown(value: object) -> str:
    """Return the shortened repr of a value, for error messages."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return _cut(_short.repr(value))


def cause(error: BaseException) -> str:
    """Return an error's type and message, shortened because it can quote a long value."""
    return f"{type(error).__name__}: {_cut(str(error))}"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 3] + "..."


def _is_of_numpy(value: object) -> bool:
    # By name instead of isinstance: importing NumPy would dominate the start-up time of a command.
    return type(value).__module__ == "numpy"


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
