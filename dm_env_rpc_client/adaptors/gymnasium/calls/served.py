"""The server properties through which clients call, read and write the allowed names."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
from dm_env import specs
from google.rpc import code_pb2

from dm_env_rpc_client.adaptors.gymnasium import value_json
from dm_env_rpc_client.adaptors.gymnasium.calls import ATTRIBUTE, CALL, KIND, METHOD, SET
from dm_env_rpc_client.errors import ProtocolError
from dm_env_rpc_client.server.errors import RequestError
from dm_env_rpc_client.server.properties import Properties
from dm_env_rpc_client.system.foreign_environments import row_count


class Callee(Protocol):
    """The environments in a world's rows, whose methods and attributes clients can use."""

    def call(
        self, name: str, rows: Sequence[int] | None, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Sequence[Any]:
        """Call a method, or read an attribute, in some or all rows, and return the results."""

    def set(self, name: str, rows: Sequence[int] | None, given: Sequence[Any]) -> None:
        """Set an attribute in some or all rows, with one value per row."""


def kinds_of(
    properties: Properties, environment: gymnasium.Env[Any, Any], names: Collection[str]
) -> None:
    """Add the properties that distinguish methods from attributes, for a single environment.

    Args:
      properties: the properties to extend.
      environment: the environment.
      names: the callable names.
    """
    for name in names:
        properties.add(
            f"{KIND}.{name}",
            functools.partial(_kind, environment, name),
            spec=specs.StringArray(()),
            description=f"whether {name} is a {METHOD} or an {ATTRIBUTE}",
        )


def _kind(environment: gymnasium.Env[Any, Any], name: str) -> str:
    return METHOD if callable(_attribute(environment, name)) else ATTRIBUTE


def _attribute(environment: gymnasium.Env[Any, Any], name: str) -> Any:
    try:
        return environment.get_wrapper_attr(name)
    except AttributeError as error:
        raise _missing(name, environment) from error


@dataclasses.dataclass(frozen=True)
class OfEach(Callee):
    """Rows that consist of one Gymnasium environment each.

    Attributes:
      count: the number of rows.
      run: called with a row's index, a function and further arguments, all of which can be
        pickled; calls the function with the row's environment and these arguments, in the thread
        or process of the row.
    """

    count: int
    run: Callable[..., Any]

    def call(
        self, name: str, rows: Sequence[int] | None, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Sequence[Any]:
        return [self.run(row, _call, name, args, kwargs) for row in self._of(rows)]

    def set(self, name: str, rows: Sequence[int] | None, given: Sequence[Any]) -> None:
        for row, value in zip(self._of(rows), given, strict=True):
            self.run(row, _set_attribute, name, value)

    def _of(self, rows: Sequence[int] | None) -> Sequence[int]:
        return range(self.count) if rows is None else rows


def _set_attribute(environment: gymnasium.Env[Any, Any], name: str, value: Any) -> None:
    environment.set_wrapper_attr(name, value)


def _call(
    environment: gymnasium.Env[Any, Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    found = _attribute(environment, name)
    return found(*args, **kwargs) if callable(found) else found


@dataclasses.dataclass(frozen=True)
class OfVector(Callee):
    """The rows of a vector environment, which calls a method for all rows together.

    If the environment has no method `call`, as in EnvPool, the named method is called directly. It
    returns one value per row, or one value for all rows.
    """

    environment: Any

    def call(
        self, name: str, rows: Sequence[int] | None, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Sequence[Any]:
        self._check_all(rows)
        own = self.environment
        if hasattr(own, "call"):
            try:
                return tuple(own.call(name, *args, **kwargs))
            except AttributeError as error:
                raise _missing(name, own) from error
        if not hasattr(own, name):
            raise _missing(name, own)
        found = getattr(own, name)
        result = found(*args, **kwargs) if callable(found) else found
        is_of_rows = isinstance(result, list | tuple | np.ndarray) and np.ndim(result) > 0
        count = row_count(own)
        assert count is not None, "only environments that declare their rows are batches"
        return tuple(result) if is_of_rows and len(result) == count else (result,) * count

    def set(self, name: str, rows: Sequence[int] | None, given: Sequence[Any]) -> None:
        self._check_all(rows)
        if not hasattr(self.environment, "set_attr"):
            kind = type(self.environment.unwrapped).__name__
            raise ValueError(
                f"{kind} has no method set_attr, so attributes of its rows cannot be set"
            )
        self.environment.set_attr(name, list(given))

    def _check_all(self, rows: Sequence[int] | None) -> None:
        if rows is not None:
            raise RequestError.invalid(
                "cannot apply a call to selected rows of a vector environment; apply it to all "
                "rows at once"
            )


class ServedCalls:
    """The methods and attributes offered to clients, and the arguments sent for the next calls."""

    def __init__(self) -> None:
        self._arguments: dict[str, Mapping[str, Any]] = {}

    def offer(
        self,
        properties: Properties,
        callee: Callee,
        callable_names: Collection[str],
        settable_names: Collection[str],
        count: int,
    ) -> None:
        """Add properties for the allowed names to a server's properties.

        Args:
          properties: the properties to extend.
          callee: the environments to call.
          callable_names: names of methods that clients may call, and of attributes that they may
            read.
          settable_names: names of attributes that clients may set.
          count: the number of rows.
        """
        for name in callable_names:
            properties.add(
                f"{CALL}.{name}",
                functools.partial(self._call, callee, name),
                functools.partial(self._take, name, count),
                spec=specs.StringArray(()),
                description=f"JSON: what {name} returns in each row, or is",
            )
        for name in settable_names:
            properties.add(
                f"{SET}.{name}",
                None,
                functools.partial(_set, callee, name, count),
                spec=specs.StringArray(()),
                description=f"JSON: sets {name} to a value for each row",
            )

    def _take(self, name: str, count: int, text: Any) -> None:
        given = _decoded(text, count)
        if not isinstance(given.get("args", []), list) or not isinstance(
            given.get("kwargs", {}), dict
        ):
            raise ValueError("expected 'args' to be a list and 'kwargs' to be a JSON object")
        self._arguments[name] = given

    def _call(self, callee: Callee, name: str) -> str:
        given = self._arguments.pop(name, {})
        results = callee.call(
            name, given.get("rows"), given.get("args", []), given.get("kwargs", {})
        )
        # Only plain arrays are stacked: a subclass, such as a masked array, would lose its mask, an
        # array without dimensions would become a scalar, a big-endian array a native one.
        arrays = [each for each in results if _is_stackable(each)]
        if len(arrays) == len(results) and len({(each.shape, each.dtype) for each in arrays}) == 1:
            return value_json.encode(np.stack(results))
        return value_json.encode(tuple(results), where=f"the results of {name}")


def _is_stackable(value: Any) -> bool:
    return (
        type(value) is np.ndarray
        and value.ndim > 0
        and value.dtype.kind in "biuf"
        and value.dtype.isnative
    )


def _set(callee: Callee, name: str, count: int, text: Any) -> None:
    given = _decoded(text, count)
    rows, each = given.get("rows"), given.get("values")
    expected = count if rows is None else len(rows)
    if not isinstance(each, list) or len(each) != expected:
        raise ValueError(f"expected 'values' to be a list of {expected} values")
    callee.set(name, rows, each)


def _decoded(text: Any, count: int) -> Mapping[str, Any]:
    try:
        given = value_json.decode(str(text), "its JSON")
    except ProtocolError as error:
        raise ValueError(str(error)) from error
    if not isinstance(given, dict):
        raise ValueError(f"expected a JSON object, got {type(given).__name__}")
    rows = given.get("rows")
    if rows is not None and not (
        isinstance(rows, list) and all(type(row) is int and 0 <= row < count for row in rows)
    ):
        raise ValueError(f"expected 'rows' to be a list of row numbers from 0 to {count - 1}")
    return given


def _missing(name: str, environment: Any) -> RequestError:
    kind = type(environment.unwrapped).__name__
    return RequestError(code_pb2.NOT_FOUND, f"{kind} has no attribute {name!r}")
