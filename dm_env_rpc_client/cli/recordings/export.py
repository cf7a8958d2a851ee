"""`dm-env-rpc export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from dm_env_rpc_client.cli.consoles import cell, console
from dm_env_rpc_client.cli.group import examples
from dm_env_rpc_client.cli.recordings import inspecting as recorded

EXAMPLES = examples(
    "dm-env-rpc export run.mcap --to parquet run.parquet",
    "dm-env-rpc export run.mcap --to minari catch/run-v0",
)


def export(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Recording to export.")],
    out: Annotated[
        str,
        typer.Argument(
            metavar="OUT",
            help="Parquet: the file to write, which must not exist. Minari: the id of the data "
            "set, such as catch/run-v0, which is stored where Minari stores them.",
        ),
    ],
    to: Annotated[Literal["parquet", "minari"], typer.Option(help="Format of the episodes.")],
    chunk_bytes: recorded.ChunkBytes = None,
) -> None:
    """Writes the episodes of a recording for other programs."""
    limits = recorded.limits_of(chunk_bytes)
    with recorded.needing_extras():
        if to == "parquet":
            from dm_env_rpc_client.recording import parquet

            count = parquet.export_parquet(path, out, limits=limits)
        else:
            from dm_env_rpc_client.recording import minari

            count = minari.export_minari(path, out, limits=limits)
    console.print(f"wrote {count} episodes to {cell(out)}")
