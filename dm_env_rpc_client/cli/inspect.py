"""`dm-env-rpc inspect`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import rich.box
import rich.console
import rich.table
import typer
from dm_env import specs

from dm_env_rpc_client import nesting
from dm_env_rpc_client.cli import arguments
from dm_env_rpc_client.cli.failures import one_line_errors

__all__ = ["describe", "inspect"]


def inspect(
    address: Annotated[str, typer.Argument(help="The server, such as localhost:50051.")],
    create: arguments.CreateSettings = None,
    join: arguments.JoinSettings = None,
    world: arguments.World = None,
    timeout: arguments.Timeout = 10.0,
    insecure: arguments.Insecure = False,
    as_json: arguments.Json = False,
) -> None:
    """Shows the actions and observations of an environment."""
    with (
        one_line_errors(),
        arguments.open_environment(
            address,
            arguments.parse_settings(create),
            arguments.parse_settings(join),
            world,
            timeout,
            insecure,
        ) as env,
    ):
        described = {
            "actions": _describe_all(env.action_spec()),
            "observations": _describe_all(env.observation_spec()),
            "reward": describe(env.reward_spec()),
            "discount": describe(env.discount_spec()),
        }
    if as_json:
        typer.echo(json.dumps({"address": address, **described}))
        return
    console = rich.console.Console()
    console.print(_table("Actions", described["actions"]))
    console.print(_table("Observations", described["observations"]))
    own = {name: described[name] for name in ("reward", "discount")}
    console.print(_table("Reward and discount", own))


def describe(spec: specs.Array) -> dict[str, Any]:
    """Returns a spec as JSON has it; bounds are numbers, or nested lists per element."""
    is_string = isinstance(spec, specs.StringArray)
    described: dict[str, Any] = {
        "dtype": "string" if is_string else "proto" if spec.dtype.kind == "O" else spec.dtype.name,
        "shape": list(spec.shape),
    }
    if isinstance(spec, specs.BoundedArray):
        described["minimum"] = _finite(spec.minimum)
        described["maximum"] = _finite(spec.maximum)
    return described


def _finite(bound: Any) -> Any:
    """JSON has no infinity: a bound that is none becomes null."""
    if np.ndim(bound):
        return [_finite(element) for element in bound]
    return bound.item() if np.isfinite(bound) else None


def _describe_all(structure: Mapping[str, Any]) -> dict[str, Any]:
    flat = nesting.flatten_dict(structure, nesting.SEPARATOR)
    return {name: describe(spec) for name, spec in flat.items()}


def _table(title: str, described: Mapping[str, Mapping[str, Any]]) -> rich.table.Table:
    table = rich.table.Table(title=title, title_justify="left", box=rich.box.SIMPLE)
    table.add_column("name", style="bold", overflow="fold")
    for column in ("dtype", "shape", "minimum", "maximum"):
        table.add_column(column, overflow="fold")
    for name, spec in described.items():
        bounds = [_short(spec[side]) if side in spec else "" for side in ("minimum", "maximum")]
        table.add_row(name, spec["dtype"], str(spec["shape"]), *bounds)
    return table


def _short(bound: Any) -> str:
    if bound is None:
        return "none"
    text = str(bound)
    return text if len(text) <= 24 else text[:21] + "..."
