"""The commands `dm-env-rpc properties list`, `get` and `set`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import rich.tree
import typer

from dm_env_rpc_client.cli import options
from dm_env_rpc_client.cli.consoles import Console, cell, console, print_json, print_text, waiting
from dm_env_rpc_client.cli.failures import UsageError
from dm_env_rpc_client.cli.group import Commands, examples
from dm_env_rpc_client.errors import DmEnvRpcClientError, DmEnvRpcError

if TYPE_CHECKING:
    from dm_env import specs

    from dm_env_rpc_client.client.connection import Connection
    from dm_env_rpc_client.extensions.properties import PropertyAccess, PropertySpec

app = typer.Typer(cls=Commands)

_MOST = 10_000
"""The maximum number of listed properties; a server could otherwise send an endless listing."""

_WIDTH = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Place(options.World):
    """The server or world whose properties are listed, read or set.

    Attributes:
      world_name: Name of an existing world to join, for its properties in addition to the server's.
      new_world: Create a world, join it for its properties, and destroy it when the command ends.
      interface: Interface to the properties: extension is the current one, legacy the core messages
        of dm_env_rpc 1.0; auto tries both.
    """

    new_world: bool = False
    interface: Literal["auto", "extension", "legacy"] = "auto"

    @contextlib.contextmanager
    def properties(self) -> Iterator[tuple[PropertyAccess, str]]:
        """Connect to the server and determine which properties interface it offers.

        With `auto`, the root is listed over each interface in turn, with a new connection each
        time, because some servers end the stream at an unknown message.

        Yields:
          The properties, and the name of the interface.

        Raises:
          UsageError: settings are given, but no world uses them.
          DmEnvRpcClientError: the server has neither interface. Otherwise as `connect` and
            `join_world`.
        """
        from dm_env_rpc_client.extensions.legacy_properties import LegacyProperties
        from dm_env_rpc_client.extensions.properties import PropertiesExtension

        self._check()
        access: dict[str, Any] = {"extension": PropertiesExtension, "legacy": LegacyProperties}
        if self.interface != "auto":
            with self._joined() as connection:
                yield access[self.interface](connection), self.interface
            return
        refusals: list[DmEnvRpcClientError] = []
        for interface, opened_with in access.items():
            with self._joined() as connection:
                properties = opened_with(connection)
                try:
                    properties.list()
                except DmEnvRpcClientError as error:
                    refusals.append(error)
                else:
                    yield properties, interface
                    return
        # An error answer is more informative than the end of a stream.
        said = next((error for error in refusals if isinstance(error, DmEnvRpcError)), refusals[0])
        raise DmEnvRpcClientError(
            f"the server at {self.address} does not support properties, either through the "
            f"extension or through the core messages of dm_env_rpc 1.0: {said}"
        ) from said

    def _check(self) -> None:
        if self.world_name is not None and self.new_world:
            raise UsageError("--world and --new-world cannot be combined")
        if self.create_settings and not self.new_world:
            raise UsageError("--create requires a new world; add --new-world")
        if self.join_settings and not self.new_world and self.world_name is None:
            raise UsageError("--join requires a world to join; add --world NAME or --new-world")

    @contextlib.contextmanager
    def _joined(self) -> Iterator[Connection]:
        if self.new_world or self.world_name is not None:
            with self.environment() as env:
                yield env.connection
        else:
            with self.connection() as connection:
                yield connection


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Wanted(options.Group):
    """The options of the listing.

    Attributes:
      key: Parent of the properties to list; all if not given.
      values: Also read the values.
      depth: Number of levels to list; all if not given.
    """

    key: Annotated[str, typer.Argument(metavar="KEY")] = ""
    values: bool = False
    depth: Annotated[int | None, typer.Option(min=1, metavar="N")] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Writing(options.Group):
    """The properties to set, each with its value.

    Attributes:
      assignments: Property and its new value, according to its dtype: true, 3, 0.5 or any text; a
        JSON list for an array.
    """

    assignments: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...")]


@app.command(
    "list",
    epilog=examples(
        "dm-env-rpc properties list localhost:50051",
        "dm-env-rpc properties list localhost:50051 physics --new-world --values",
    ),
)
@options.with_options
def list_properties(*, wanted: _Wanted, place: _Place, as_json: options.Json = False) -> None:
    """List the properties of a server or world as a tree."""
    from dm_env_rpc_client.cli.properties.text import describe_property

    key = wanted.key
    entries: list[_Entry] = []
    with (
        place.properties() as (properties, interface),
        waiting(f"listing the properties of {place.address}"),
    ):
        for parent, spec in _walk(properties, key, wanted.depth):
            if len(entries) == _MOST:
                console.print(
                    f"stopped after {_MOST} properties; pass a KEY to list those below it"
                )
                break
            value = _read(properties, spec) if wanted.values and spec.readable else {}
            entries.append(_Entry(parent, spec, value))
    if as_json:
        listed = [{**describe_property(entry.spec), **entry.value} for entry in entries]
        print_json({"address": place.address, "interface": interface, "properties": listed})
    elif entries:
        # Wide enough for any line, because the terminal does the wrapping.
        out = Console(highlight=False, soft_wrap=True, width=_WIDTH)
        out.print(_tree(key or place.address, key, entries))
    else:
        is_joined = place.world_name or place.new_world
        hint = "" if is_joined else "; to list those of a world, add --world NAME or --new-world"
        console.print(f"{place.address} has no properties{hint}")


@app.command(
    "get",
    epilog=examples(
        "dm-env-rpc properties get localhost:50051 physics.gravity",
        "dm-env-rpc properties get localhost:50051 level.seed level.name --world w1 --json",
    ),
)
@options.with_options
def get_properties(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Keys of properties.")],
    *,
    place: _Place,
    as_json: options.Json = False,
) -> None:
    """Read properties. A single value is printed alone; several are printed as KEY = VALUE."""
    with place.properties() as (properties, _):
        values = {key: properties.read(key) for key in keys}
    _print_values(place.address, values, as_json, bare=len(keys) == 1)


@app.command(
    "set",
    epilog=examples(
        "dm-env-rpc properties set localhost:50051 physics.gravity=1.62",
        "dm-env-rpc properties set localhost:50051 'level.size=[8, 6]' level.name=hill --world w1",
    ),
)
@options.with_options
def set_properties(*, wanted: _Writing, place: _Place, as_json: options.Json = False) -> None:
    """Validate all values, then write the properties in the given order."""
    from dm_env_rpc_client.cli.properties.text import parse_value

    texts: dict[str, str] = {}
    for assignment in wanted.assignments:
        key, found, text = assignment.partition("=")
        if not found or not key:
            raise UsageError(
                f"expected an assignment such as physics.gravity=1.62, got {assignment!r}"
            )
        texts[key] = text
    with place.properties() as (properties, _):
        values = {
            key: parse_value(key, text, _find_spec(properties, key)) for key, text in texts.items()
        }
        for key, value in values.items():
            properties.write(key, value)
    _print_values(place.address, values, as_json, bare=False)


class _Entry(NamedTuple):
    """A property in a listing, whose `value` is {}, {"value": ...} or {"error": ...}."""

    parent: str
    spec: PropertySpec
    value: dict[str, Any]


def _walk(
    properties: PropertyAccess, key: str, depth: int | None
) -> Iterator[tuple[str, PropertySpec]]:
    """Yield the parent's key and the spec of each property, once and before its children."""
    seen = {key}
    levels = [(key, iter(properties.list(key)))]
    while levels:
        parent, siblings = levels[-1]
        spec = next(siblings, None)
        if spec is None:
            levels.pop()
        elif spec.key not in seen:
            seen.add(spec.key)
            yield parent, spec
            if spec.listable and (depth is None or len(levels) < depth):
                levels.append((spec.key, iter(properties.list(spec.key))))


def _read(properties: PropertyAccess, spec: PropertySpec) -> dict[str, Any]:
    try:
        return {"value": properties.read(spec.key)}
    except DmEnvRpcError as error:
        return {"error": str(error)}


def _find_spec(properties: PropertyAccess, key: str) -> specs.Array | None:
    """Return the spec that the server lists for a property, or None if it does not list one."""
    from dm_env_rpc_client.tensors.nesting import SEPARATOR

    try:
        listed = properties.specs(key.rpartition(SEPARATOR)[0]).get(key)
    except DmEnvRpcError:
        listed = None
    if listed is None:
        listed = next((spec for spec in properties.walk() if spec.key == key), None)
    return None if listed is None else listed.spec


def _tree(title: str, root: str, entries: list[_Entry]) -> rich.tree.Tree:
    from dm_env_rpc_client.cli.properties.text import show_spec, show_value

    tree = rich.tree.Tree(cell(title))
    branches = {root: tree}
    for parent, spec, value in entries:
        name = spec.key.removeprefix(f"{parent}.") if parent else spec.key
        line = f"[bold]{cell(name)}[/]"
        if "value" in value:
            line += f" = {cell(show_value(value['value']))}"
        elif "error" in value:
            line += f" [red]{cell(show_value(value['error']))}[/]"
        line += f"  [cyan]{cell(show_spec(spec))}[/]"
        if spec.description:
            line += f"  [dim]{cell(show_value(spec.description))}[/]"
        branches[spec.key] = branches[parent].add(line.rstrip())
    return tree


def _print_values(address: str, values: dict[str, Any], as_json: bool, bare: bool) -> None:
    if as_json:
        print_json({"address": address, "properties": values})
        return
    for key, value in values.items():
        text = str(value.tolist() if hasattr(value, "tolist") else value)
        print_text(text if bare else f"{key} = {text}")
