"""A client's access to the methods and attributes of Gymnasium environments on servers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dm_env_rpc_client.adaptors.gymnasium import value_json
from dm_env_rpc_client.adaptors.gymnasium.calls import CALL, KIND, METHOD, SET
from dm_env_rpc_client.adaptors.gymnasium.unsent import Given
from dm_env_rpc_client.environment.many.open_rows import AnyWorlds
from dm_env_rpc_client.errors import DmEnvRpcClientError, PropertyNotFoundError, ProtocolError
from dm_env_rpc_client.extensions.properties import PropertiesExtension

if TYPE_CHECKING:
    from dm_env_rpc_client.client.connection import Connection


class RemoteCalls:
    """`call`, `get_attr` and `set_attr` of Gymnasium's vector environments, for remote rows.

    A server allows names with `serve(callable_names=..., settable_names=...)`. Only data is
    transferred: numbers, strings, bytes, dates, arrays, lists, tuples, sets and mappings. Any other
    argument raises SpecError, and any other result arrives as its `repr`.
    """

    num_envs: int
    _worlds: AnyWorlds

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every environment.

        Args:
          name: the name of the method, or of an attribute, whose value is returned.
          *args: positional arguments, which must be data, the same for every environment.
          **kwargs: keyword arguments, which must be data, the same for every environment.

        Returns:
          The result for each environment.

        Raises:
          AttributeError: the server does not allow the name, or the environment has no such
            attribute.
          SpecError: an argument cannot be sent, or an environment has a pending step; nothing was
            sent.
          DmEnvRpcError: the method raised an error, which the message quotes.
        """
        return tuple(call_rows(self._worlds, name, range(self.num_envs), args, kwargs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of every environment, or call it if it is a method.

        The errors are those of `call`.
        """
        return self.call(name)

    def set_attr(self, name: str, given: Any) -> None:
        """Set an attribute of every environment.

        Args:
          name: the name of the attribute.
          given: the value, which must be data; a list or tuple contains one value for each
            environment.

        Raises:
          ValueError: the length of the list or tuple is not the number of environments. Otherwise
            as `call`.
        """
        each = list(given) if isinstance(given, list | tuple) else [given] * self.num_envs
        if len(each) != self.num_envs:
            raise ValueError(
                f"expected a value for each of {self.num_envs} environments, got {len(each)}"
            )
        set_rows(self._worlds, name, range(self.num_envs), each)


def call_rows(
    worlds: AnyWorlds,
    name: str,
    rows: Sequence[int],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> list[Any]:
    """Call a method in some rows and return the results; see `RemoteCalls.call`.

    Args:
      worlds: the worlds that contain the rows.
      name: the name of the method.
      rows: the indices of the rows.
      args: positional arguments, the same for every row.
      kwargs: keyword arguments, the same for every row.
    """
    results: dict[int, Any] = {}
    for properties, own, places in _parts(worlds, rows):
        found = _call(properties, name, places, args, kwargs, len(own))
        results.update(zip(own, found, strict=True))
    return [results[row] for row in rows]


def set_rows(worlds: AnyWorlds, name: str, rows: Sequence[int], each: Sequence[Any]) -> None:
    """Set an attribute in some rows, with one value per row; see `RemoteCalls.set_attr`."""
    of = dict(zip(rows, each, strict=True))
    # All values are encoded first: if one is refused, no attribute is set.
    texts = [
        (properties, _values([of[row] for row in own], places))
        for properties, own, places in _parts(worlds, rows)
    ]
    for properties, text in texts:
        _set(properties, name, text)


def may_be_called(worlds: AnyWorlds, name: str) -> bool:
    """Whether the first row's server allows clients to call a name."""
    return name in _allowed(PropertiesExtension(worlds.pool.environments[0].connection), CALL)


class RemoteNames:
    """The methods and attributes of a remote Gymnasium environment that clients may use.

    The names are requested once, on first use.

    Args:
      connection: returns the connection joined to the environment's world.
    """

    def __init__(self, connection: Callable[[], Connection]):
        self._connection = connection
        self._allowed: dict[str, Collection[str]] = {}
        self._kinds: dict[str, str] = {}

    def get(self, name: str) -> Any:
        """Return a function that calls a method, or the value of an attribute.

        Raises:
          AttributeError: the server does not allow the name, its environment has no such attribute,
            or the request for the allowed names fails.
        """
        if name not in self._names(CALL):
            raise AttributeError(name)
        if self._kind(name) == METHOD:
            return functools.partial(self._call, name)
        return self._call(name)

    def set(self, name: str, value: Any) -> bool:
        """Set an attribute, or return False if the server does not allow its name."""
        if name not in self._names(SET):
            return False
        _set(PropertiesExtension(self._connection()), name, _values([value], None))
        return True

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        properties = PropertiesExtension(self._connection())
        return _call(properties, name, None, args, kwargs, 1)[0]

    def _kind(self, name: str) -> str:
        kind = self._kinds.get(name)
        if kind is None:
            try:
                kind = str(PropertiesExtension(self._connection()).read(f"{KIND}.{name}"))
            except PropertyNotFoundError as error:
                if "has no attribute" in str(error):
                    raise AttributeError(f"{name!r}: {error}") from error
                kind = METHOD  # An older server does not have these properties.
            self._kinds[name] = kind
        return kind

    def _names(self, parent: str) -> Collection[str]:
        names = self._allowed.get(parent)
        if names is None:
            try:
                names = _allowed(PropertiesExtension(self._connection()), parent)
            except DmEnvRpcClientError as error:
                raise AttributeError(
                    f"could not get the list of names that the server allows: {error}"
                ) from error
            self._allowed[parent] = names
        return names


def _call(
    properties: PropertiesExtension,
    name: str,
    rows: Sequence[int] | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    count: int,
) -> list[Any]:
    """Call a method in some rows of one world, or in all if `rows` is None; return the results."""
    key = f"{CALL}.{name}"
    given: dict[str, Any] = {} if rows is None else {"rows": rows}
    if args or kwargs:
        given.update(args=list(args), kwargs=dict(kwargs))
    try:
        if given:
            properties.write(key, value_json.encode(given, where=Given("")))
        text = properties.read(key)
    except PropertyNotFoundError as error:
        raise _refused(properties, CALL, name, error) from error
    found: Any = value_json.decode(str(text), f"property {key!r}")
    if not isinstance(found, tuple | np.ndarray) or len(found) != count:
        raise ProtocolError(f"property {key!r}: expected a list of {count} values")
    return list(found)


def _values(each: Sequence[Any], places: Sequence[int] | None) -> str:
    """Return the JSON that sets an attribute in some rows of one world.

    Args:
      each: the value for each row.
      places: the positions of the rows in the world; None for all.
    """
    given: dict[str, Any] = {"values": list(each)}
    if places is not None:
        given["rows"] = places
    return value_json.encode(given, where=Given(""))


def _set(properties: PropertiesExtension, name: str, text: str) -> None:
    """Set an attribute in one world, with the result of `_values`."""
    try:
        properties.write(f"{SET}.{name}", text)
    except PropertyNotFoundError as error:
        raise _refused(properties, SET, name, error) from error


def _allowed(properties: PropertiesExtension, parent: str) -> list[str]:
    """Return the names that a server allows clients to call or to set."""
    try:
        return [key.removeprefix(f"{parent}.") for key in properties.specs(parent)]
    except PropertyNotFoundError:
        return []


def _parts(
    worlds: AnyWorlds, rows: Sequence[int]
) -> Iterator[tuple[PropertiesExtension, list[int], list[int] | None]]:
    """Yield each world's properties, its selected rows and their positions in the world.

    The positions are None if all rows of the world are selected.
    """
    worlds.check_idle(rows)
    wanted = set(rows)
    for environment, group in zip(worlds.pool.environments, worlds.groups, strict=True):
        places = [place for place, row in enumerate(group) if row in wanted]
        if places:
            own = [group[place] for place in places]
            is_whole = len(places) == len(group)
            yield PropertiesExtension(environment.connection), own, None if is_whole else places


def _refused(
    properties: PropertiesExtension, parent: str, name: str, error: PropertyNotFoundError
) -> AttributeError:
    """Return the error for a name that the server does not allow or the environment lacks."""
    option = "callable_names" if parent == CALL else "settable_names"
    allowed = _allowed(properties, parent)
    if name in allowed:
        return AttributeError(f"{name!r}: {error}")
    known = f"{option}={allowed}" if allowed else f"no {option}"
    return AttributeError(
        f"{name!r}: the server allows {known}; names are allowed with serve({option}=...)"
    )
