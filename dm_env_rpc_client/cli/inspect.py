"""`dm-env-rpc inspect`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dm_env_rpc_client.cli import options
from dm_env_rpc_client.cli.consoles import Console, print_json, table
from dm_env_rpc_client.cli.group import examples
from dm_env_rpc_client.cli.recordings import inspecting as recorded

if TYPE_CHECKING:
    from dm_env import specs

EXAMPLES = examples(
    "dm-env-rpc inspect localhost:50051",
    "dm-env-rpc inspect localhost:50051 --create rows=6 --json",
    "dm-env-rpc inspect run.mcap                   # a recording",
    "dm-env-rpc inspect env.host:50051 --tls-ca ca.pem --token-file token",
)

_SIDES = ("minimum", "maximum")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _World(options.World):
    """The world or recording to describe.

    Attributes:
      address: Address of the server, such as localhost:50051, or a recording.
    """

    address: Annotated[str, typer.Argument(metavar="ADDRESS|FILE")]


@options.with_options
def inspect(*, world: _World, as_json: options.Json = False, reading: recorded.Reading) -> None:
    """Show the specs of an environment's actions, observations, reward and discount.

    For a recording, show its episodes: steps, returns, durations, and an image.
    """
    if recorded.is_recording(world.address):
        recorded.inspect_recording(world.address, as_json, reading.limits)
        return
    from dm_env_rpc_client.environment.many.one_row import num_envs_of

    with world.environment() as env:
        num_envs = num_envs_of(env)
        form = None if num_envs is None else _form(env)
        actions, observations = env.action_spec(), env.observation_spec()
        own = {"reward": env.reward_spec(), "discount": env.discount_spec()}
    if as_json:
        described = {
            "actions": _describe_all(actions),
            "observations": _describe_all(observations),
            **_describe_all(own),
        }
        print_json({"address": world.address, "num_envs": num_envs, "form": form, **described})
        return
    from dm_env_rpc_client.tensors.displays.spec_tables import COLUMNS, spec_rows

    console = Console()
    shown = {"Actions": actions, "Observations": observations, "Reward and discount": own}
    for title, structure in shown.items():
        console.print(table(COLUMNS, spec_rows(structure, to=".."), title=title))
    if num_envs is not None:
        console.print(
            f"A batch of {num_envs} environments: actions and observations have one row for each.",
            highlight=False,
        )
    if form is not None:
        from dm_env_rpc_client.plain_text import one_line

        console.print(f"Its form: {one_line(form)}.", highlight=False, markup=False)


def _form(env: Any) -> str | None:
    """Return the server's description of the batch layout, or None if the server sent none."""
    from dm_env_rpc_client.errors import DmEnvRpcClientError
    from dm_env_rpc_client.extensions.properties import PropertiesExtension
    from dm_env_rpc_client.protocol.batches import WORLD_FORM

    try:
        return str(PropertiesExtension(env.connection)[WORLD_FORM])
    except DmEnvRpcClientError:
        return None


def describe(spec: specs.Array) -> dict[str, Any]:
    """Return a spec as JSON, where each bound is one number or nested lists for all elements."""
    from dm_env import specs

    from dm_env_rpc_client.tensors.displays.spec_tables import dtype_text

    described: dict[str, Any] = {"dtype": dtype_text(spec), "shape": list(spec.shape)}
    if isinstance(spec, specs.BoundedArray):
        described.update({side: _finite(getattr(spec, side)) for side in _SIDES})
    return described


def _finite(bound: Any) -> Any:
    """Return a bound as JSON, with null for infinity because JSON cannot represent it."""
    import numpy as np

    if np.ndim(bound):
        return [_finite(element) for element in bound]
    return bound.item() if np.isfinite(bound) else None


def _describe_all(structure: Mapping[str, Any]) -> dict[str, Any]:
    from dm_env_rpc_client.tensors import nesting

    flat = nesting.flatten_dict(structure, nesting.SEPARATOR)
    return {name: describe(spec) for name, spec in flat.items()}
