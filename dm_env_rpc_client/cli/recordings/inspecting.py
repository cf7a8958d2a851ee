"""Describes a recording for `dm-env-rpc inspect`."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Annotated, Any

import rich.console
import typer

from dm_env_rpc_client.cli import options
from dm_env_rpc_client.cli.consoles import Console, cell, print_json, table

if TYPE_CHECKING:
    from dm_env_rpc_client.recording import Episode
    from dm_env_rpc_client.tensors.memory_limits import Limits

_MOST_ROWS = 50
"""The maximum number of episodes in the table, not counting the last one."""

_WIDTH, _HEIGHT = 64, 24
"""The maximum size of a picture, in characters."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading(options.Group):
    """Options for reading a recording.

    Attributes:
      chunk_bytes: Maximum size of a recording's chunks, and of its TimeSteps in memory.
    """

    chunk_bytes: Annotated[int | None, typer.Option(min=1, show_default="256 MiB")] = None

    @property
    def limits(self) -> Limits:
        """The limits for reading a recording."""
        from dm_env_rpc_client.tensors.memory_limits import DEFAULT, MAX_MESSAGE_BYTES, Limits

        if self.chunk_bytes is None:
            return DEFAULT
        message_bytes = max(DEFAULT.message_bytes, min(self.chunk_bytes, MAX_MESSAGE_BYTES))
        return Limits(chunk_bytes=self.chunk_bytes, message_bytes=message_bytes)


def is_recording(named: str) -> bool:
    """Return whether `inspect` was given a file rather than an address."""
    return named.endswith(".mcap") or os.path.isfile(named)


def inspect_recording(path: str, as_json: bool, limits: Limits) -> None:
    """Show the connections and the episodes of a recording, and a picture if there is one.

    Raises:
      RecordingError: the file cannot be read, is not a recording, is damaged or breaks the
        protocol; its readable part was shown.
    """
    from dm_env_rpc_client.errors import RecordingError
    from dm_env_rpc_client.recording import Scan, episodes

    scan = Scan(path, limits)
    console = Console()
    described = []
    picture = None
    draws = console.is_terminal and not as_json
    failure = None
    try:
        for episode in episodes(scan):
            described.append(_describe(episode))
            picture = _picture(episode) if draws and picture is None else picture
    except RecordingError as error:
        if not scan.connections:
            raise
        failure = error
    connections = [
        {**each.metadata, "connection": each.number, "address": each.address}
        for each in scan.connections.values()
    ]
    if as_json:
        print_json(
            {
                "file": path,
                "complete": scan.is_complete,
                "connections": connections,
                "episodes": described,
                "error": None if failure is None else str(failure),
            }
        )
    else:
        _print_tables(console, connections, described)
        if not scan.is_complete and failure is None:
            console.print(
                "The file has no end: the recording goes on, or the recorder was killed. All data "
                "written so far is shown."
            )
        for part in picture or ():
            console.print(part, highlight=False, width=_WIDTH, height=_HEIGHT)
    if failure is not None:
        raise failure


def _describe(episode: Episode) -> dict[str, Any]:
    return {
        "episode": episode.number,
        "connection": episode.connection.number,
        "world": episode.world_name,
        "row": episode.row,
        "began": episode.began.isoformat(timespec="milliseconds"),
        "steps": len(episode) - 1,
        "return": episode.episode_return,
        "seconds": round(episode.seconds, 6),
        "end": episode.end,
    }


def _print_tables(
    console: rich.console.Console,
    connections: list[dict[str, Any]],
    described: list[dict[str, Any]],
) -> None:
    columns: tuple[str, ...] = ("connection", "address", "transport", "version")
    rows = [[each.get(name, "") for name in columns] for each in connections]
    console.print(table(columns, rows, title="Connections"))
    columns = ("episode", "connection", "world", "row", "steps", "return", "seconds", "end")
    if all(each["row"] is None for each in described):
        columns = tuple(name for name in columns if name != "row")
    rows = [[each[name] for name in columns] for each in described]
    if len(rows) > _MOST_ROWS:
        rows[_MOST_ROWS:-1] = [["..."]]
    episodes = table(columns, rows, title="Episodes")
    episodes.columns[0].no_wrap = episodes.columns[-1].no_wrap = True
    console.print(episodes)
    steps = sum(each["steps"] for each in described)
    console.print(f"{len(described)} episodes, {steps} steps", highlight=False)


def _picture(episode: Episode) -> tuple[str, Any] | None:
    """Return the title and the first image of the last TimeStep, or None if it has no image."""
    import numpy as np

    from dm_env_rpc_client.cli.recordings.drawing import Drawing
    from dm_env_rpc_client.tensors.displays import images
    from dm_env_rpc_client.tensors.displays.spec_tables import ANY, value_range

    for name, value in episode.flat_timesteps[-1].observation.items():
        array, spec = np.asarray(value), episode.observation_specs.get(name)
        if images.is_image(array.shape, array.dtype):
            of_row = "" if episode.row is None else f" of row {episode.row}"
            title = f"{name}, at the end of episode {episode.number}{of_row}:"
            bounds = ANY if spec is None else value_range(spec)
            return cell(title), Drawing(images.rgb(array, *bounds))
    return None
