"""Calls methods, and reads and writes attributes, of Gymnasium environments at servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dm_env_rpc_client.adaptors.gymnasium import values
from dm_env_rpc_client.adaptors.gymnasium.calls import CALL, SET
from dm_env_rpc_client.environment.many.row_worlds import RowWorlds, StreamWorlds
from dm_env_rpc_client.errors import PropertyNotFoundError, ProtocolError
from dm_env_rpc_client.extensions.properties import PropertiesExtension

__all__ = ["RemoteCalls", "call_rows", "may_be_called", "set_rows"]


class RemoteCalls:
    """The methods of Gymnasium's own vector environments for the attributes of their rows.

    A server allows names with `serve(callable_names=..., settable_names=...)`. What travels is
    data: numbers, texts, arrays, lists, tuples and mappings of them; an object arrives as its
    `repr`.
    """

    num_envs: int
    _worlds: RowWorlds

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of every environment.

        Args:
          name: its name, or that of an attribute, which is read.
          *args: data, for each.
          **kwargs: the same.

        Returns:
          What it returned, for each environment.

        Raises:
          AttributeError: the server does not allow the name, or the environment has no such
            attribute.
          SpecError: an environment has a step under way.
          DmEnvRpcError: the method raised an error, whose text it has.
        """
        return tuple(call_rows(self._worlds, name, range(self.num_envs), args, kwargs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Returns an attribute of every environment; a method is called. Raises as `call`."""
        return self.call(name)

    def set_attr(self, name: str, given: Any) -> None:
        """Sets an attribute of every environment.

        Args:
          name: its name.
          given: data; a list or tuple has a value for each environment.

        Raises:
          ValueError: it has not as many. Otherwise as `call`.
        """
        each = list(given) if isinstance(given, list | tuple) else [given] * self.num_envs
        if len(each) != self.num_envs:
            raise ValueError(
                f"expected a value for each of {self.num_envs} environments, got {len(each)}"
            )
        set_rows(self._worlds, name, range(self.num_envs), each)


def call_rows(
    worlds: RowWorlds,
    name: str,
    rows: Sequence[int],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> list[Any]:
    """Returns what a method returned in some rows; see `RemoteCalls.call`.

    Args:
      worlds: has the rows.
      name: its name.
      rows: their indices.
      args: for each of them.
      kwargs: the same.
    """
    results: dict[int, Any] = {}
    for properties, own, places in _parts(worlds, rows):
        key = f"{CALL}.{name}"
        given: dict[str, Any] = {} if places is None else {"rows": places}
        if args or kwargs:
            given.update(args=list(args), kwargs=dict(kwargs))
        try:
            if given:
                properties.write(key, values.encode(given))
            text = properties.read(key)
        except PropertyNotFoundError as error:
            raise _refused(properties, CALL, name, error) from error
        found = values.decode(str(text), f"property {key!r}")
        if not isinstance(found, tuple | np.ndarray) or len(found) != len(own):
            raise ProtocolError(f"property {key!r}: expected {len(own)} values")
        results.update(zip(own, found, strict=True))
    return [results[row] for row in rows]


def set_rows(worlds: RowWorlds, name: str, rows: Sequence[int], each: Sequence[Any]) -> None:
    """Sets an attribute in some rows, to a value for each; see `RemoteCalls.set_attr`."""
    of = dict(zip(rows, each, strict=True))
    for properties, own, places in _parts(worlds, rows):
        given: dict[str, Any] = {"values": [of[row] for row in own]}
        if places is not None:
            given["rows"] = places
        try:
            properties.write(f"{SET}.{name}", values.encode(given))
        except PropertyNotFoundError as error:
            raise _refused(properties, SET, name, error) from error


def may_be_called(worlds: RowWorlds, name: str) -> bool:
    """Whether the server of the first row allows a name to be called."""
    properties = PropertiesExtension(worlds.pool.environments[0].connection)
    try:
        return f"{CALL}.{name}" in properties.specs(CALL)
    except PropertyNotFoundError:
        return False


def _parts(
    worlds: RowWorlds, rows: Sequence[int]
) -> Iterator[tuple[PropertiesExtension, list[int], list[int] | None]]:
    """Yields each world with rows: its properties, the rows, and their places; None for all."""
    worlds.check_idle(rows)
    wanted = set(rows)
    if isinstance(worlds, StreamWorlds):
        groups = [[row] for row in range(worlds.num_envs)]
    else:
        groups = worlds.groups
    for environment, group in zip(worlds.pool.environments, groups, strict=True):
        places = [place for place, row in enumerate(group) if row in wanted]
        if places:
            own = [group[place] for place in places]
            is_whole = len(places) == len(group)
            yield PropertiesExtension(environment.connection), own, None if is_whole else places


def _refused(
    properties: PropertiesExtension, parent: str, name: str, error: PropertyNotFoundError
) -> AttributeError:
    """Returns the error for a name that a server does not allow, or an environment lacks."""
    option = "callable_names" if parent == CALL else "settable_names"
    try:
        allowed = [key.removeprefix(f"{parent}.") for key in properties.specs(parent)]
    except PropertyNotFoundError:
        allowed = []
    if name in allowed:
        return AttributeError(f"{name!r}: {error}")
    known = f"{option}={allowed}" if allowed else f"no {option}"
    return AttributeError(
        f"{name!r}: the server allows {known}; names are allowed with serve({option}=...)"
    )
