"""Checks of arguments, when they are given: one function for each kind of value.

A value of another type or out of range is a SpecError, which is also a ValueError. An unknown
keyword is a TypeError, as Python raises it. The text of the error names the argument, and says what
it takes and what was given. NumPy's scalars are numbers, and a bool is not. Each function returns
the value to use: a NumPy scalar becomes a number of Python.

Times are in seconds. They are finite, and at most `MOST_SECONDS`. A limit, such as `timeout`, is
more than 0, because no transport answers in no time; None sets no limit. A grace may be 0, and so
may the timeout of a wait for an event: it looks once.
"""

from __future__ import annotations

import numbers
import os
import reprlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from dm_env_rpc_client.errors import SpecError

MOST_SECONDS = (1 << 31) // 1000
"""The longest time: poll(2) takes milliseconds as an int."""

NO_LIMIT = "None for no limit"
"""The meaning of None for most limits."""

_DAY_SECONDS = 24 * 60 * 60

Seconds = TypeVar("Seconds", float, float | None)
Count = TypeVar("Count", int, int | None)
Flag = TypeVar("Flag", bool, bool | None)
Given = TypeVar("Given")

_MOST_CHARACTERS = 250

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80


def seconds(name: str, value: Seconds, *, least: float | None = None, none: str = "") -> Seconds:
    """Return a time.

    Args:
      name: of the argument.
      value: what was given.
      least: the shortest time, which may be 0; None if it has to be more than 0.
      none: what None stands for, such as `NO_LIMIT`; empty if it is not allowed.

    Raises:
      SpecError: it is not a finite number of seconds in the range.
    """
    if value is None and none:
        return value
    if not _is_number(value, numbers.Real):
        raise refused(name, "a number of seconds", value, none)
    number: Any = value
    if _is_of_numpy(value):
        number = float(number)  # Small types overflow when they are compared.
    if number > MOST_SECONDS and number != float("inf"):
        days = MOST_SECONDS // _DAY_SECONDS
        raise refused(name, f"at most {MOST_SECONDS} seconds ({days} days)", value, none)
    if not (number > 0 if least is None else number >= least) or number > MOST_SECONDS:
        bound = "more than 0" if least is None else f"at least {least:g}"
        raise refused(name, f"finite and {bound}", value, none)
    return number if isinstance(number, int | float) else float(number)


def amount(name: str, value: Seconds, *, none: str = "") -> Seconds:
    """Return a number that is more than 0 and finite, such as a rate.

    Args:
      name: of the argument.
      value: what was given.
      none: what None stands for, such as `NO_LIMIT`; empty if it is not allowed.

    Raises:
      SpecError: it is another value.
    """
    if value is None and none:
        return value
    number: Any = value
    if not _is_number(value, numbers.Real) or not 0 < number < float("inf"):
        raise refused(name, "a number, finite and more than 0", value, none)
    return float(number)


def count(
    name: str, value: Count, *, least: int = 1, most: int | None = None, none: str = ""
) -> Count:
    """Return an integer.

    Args:
      name: of the argument.
      value: what was given.
      least: the smallest number.
      most: the largest number; None for any.
      none: what None stands for, such as `NO_LIMIT`; empty if it is not allowed.

    Raises:
      SpecError: it is not an integer in the range.
    """
    if value is None and none:
        return value
    number: Any = value
    is_integer = _is_number(value, numbers.Integral)
    if not is_integer or number < least or (most is not None and number > most):
        bounds = f"from {least} on" if most is None else f"from {least} to {most}"
        raise refused(name, f"an integer {bounds}", value, none)
    return int(number)


def flag(name: str, value: Flag, *, none: str = "") -> Flag:
    """Return a bool; SpecError for anything else, also for 0, 1 and texts such as "no".

    Args:
      name: of the argument.
      value: what was given.
      none: what None stands for; empty if it is not allowed.
    """
    if value is None and none:
        return value
    is_flag = _is_of_numpy(value) and type(value).__name__ in ("bool", "bool_")
    if not is_flag and not isinstance(value, bool):
        raise refused(name, "True or False", value, none)
    return bool(value)


def text(name: str, value: Given, *, expected: str = "text", none: str = "") -> Given:
    """Return a str; SpecError if it is empty or of another type.

    Args:
      name: of the argument.
      value: what was given.
      expected: what the error calls it.
      none: what None stands for; empty if it is not allowed.
    """
    if not (value is None and none) and not (isinstance(value, str) and value):
        raise refused(name, expected, value, none)
    return value


def path(name: str, value: Given, *, none: str = "") -> Given:
    """Return the path of a file or folder: a str, or an `os.PathLike` of one.

    Args:
      name: of the argument.
      value: what was given.
      none: what None stands for; empty if it is not allowed.

    Raises:
      SpecError: it is empty or of another type.
    """
    if value is None and none:
        return value
    given = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(given, str) or not given:
        raise refused(name, "a path", value, none)
    return value


def mapping(name: str, value: Given, *, expected: str = "a mapping", none: str = "") -> Given:
    """Return a Mapping, such as a dict; SpecError if it is of another type.

    Args:
      name: of the argument.
      value: what was given.
      expected: what the error calls it.
      none: what None stands for; empty if it is not allowed.
    """
    return instance(name, value, Mapping, expected, none=none)


def names(
    name: str, value: Given, *, expected: str = "a sequence of names", none: str = ""
) -> Given:
    """Return a collection of texts; SpecError for anything else, also for a single text.

    Args:
      name: of the argument.
      value: what was given.
      expected: what the error calls it.
      none: what None stands for; empty if it is not allowed.
    """
    if value is None and none:
        return value
    found: Any = value
    is_collection = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
    if not is_collection or not all(isinstance(each, str) for each in found):
        raise refused(name, expected, value, none)
    return value


def one_of(name: str, value: Given, known: Sequence[object]) -> Given:
    """Return one of some texts; SpecError, which lists them, for anything else."""
    if not isinstance(value, str) or value not in known:
        listed = ", ".join(map(repr, known))
        raise SpecError(f"no {name} {shown(value)}; choose one of {listed}")
    return value


def function(name: str, value: Given, *, expected: str = "a function", none: str = "") -> Given:
    """Return a callable; SpecError if it cannot be called.

    Args:
      name: of the argument.
      value: what was given.
      expected: what the error calls it.
      none: what None stands for; empty if it is not allowed.
    """
    if not (value is None and none) and not callable(value):
        raise refused(name, expected, value, none)
    return value


def instance(
    name: str, value: Given, kind: type | tuple[type, ...], expected: str, *, none: str = ""
) -> Given:
    """Return an object of a class; SpecError if it is of another.

    Args:
      name: of the argument.
      value: what was given.
      kind: the class, or several.
      expected: what the error calls it.
      none: what None stands for; empty if it is not allowed.
    """
    if not (value is None and none) and not isinstance(value, kind):
        raise refused(name, expected, value, none)
    return value


def refused(name: str, expected: str, value: object, none: str = "") -> SpecError:
    """Return the error of an argument.

    Args:
      name: of the argument.
      expected: what it takes.
      value: what was given.
      none: what None stands for; empty if it is not allowed.
    """
    or_none = f", or {none}" if none else ""
    return SpecError(f"{name} must be {expected}{or_none}, got {shown(value)}")


def shown(value: object) -> str:
    """Return a given value's name in errors: its repr, shortened."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return _cut(_short.repr(value))


def cause(error: BaseException) -> str:
    """Return the type of an error and its text, shortened: it may quote a given value."""
    return f"{type(error).__name__}: {_cut(str(error))}"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 3] + "..."


def _is_of_numpy(value: object) -> bool:
    # Not by a class: NumPy takes most of the time that a command takes to start.
    return type(value).__module__ == "numpy"


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
