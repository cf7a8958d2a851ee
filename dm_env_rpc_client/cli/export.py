"""`dm-env-rpc export`."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from dm_env_rpc_client.cli import recorded
from dm_env_rpc_client.cli.consoles import cell, console
from dm_env_rpc_client.cli.group import examples

__all__ = ["EXAMPLES", "export"]

EXAMPLES = examples(
    "dm-env-rpc export run.mcap --to parquet run.parquet",
    "dm-env-rpc export run.mcap --to minari catch/run-v0",
)


class _Format(str, enum.Enum):
    PARQUET = "parquet"
    MINARI = "minari"


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
    to: Annotated[_Format, typer.Option("--to", help="Format of the episodes.")],
    chunk_bytes: recorded.ChunkBytes = None,
) -> None:
    """Writes the episodes of a recording for other programs."""
    limits = recorded.limits_of(chunk_bytes)
    if to is _Format.PARQUET:
        with recorded.needing_extras():
            from dm_env_rpc_client.recording.parquet import export_parquet

        count = export_parquet(path, out, limits=limits)
    else:
        with recorded.needing_extras():
            from dm_env_rpc_client.recording.minari import export_minari

        count = export_minari(path, out, limits=limits)
    console.print(f"wrote {count} episodes to {cell(out)}")
