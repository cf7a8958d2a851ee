"""Episodes as a Parquet file, a row for each TimeStep; needs the extra `parquet`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from dm_env import StepType, specs

from dm_env_rpc_client import arguments
from dm_env_rpc_client.errors import RecordingError
from dm_env_rpc_client.extras import importing
from dm_env_rpc_client.protocol.timesteps import DISCOUNT, REWARD
from dm_env_rpc_client.recording.episode import Episode
from dm_env_rpc_client.recording.episodes import episodes
from dm_env_rpc_client.recording.exported_sizes import TIMESTEP_PART, exported_sizes, is_list
from dm_env_rpc_client.recording.reading import check_reading
from dm_env_rpc_client.tensors.limits import DEFAULT, Limits

with importing("parquet", "Parquet needs"):
    import pyarrow as pa
    import pyarrow.parquet


def export_parquet(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    limits: Limits = DEFAULT,
    on_episode: Callable[[Episode], object] | None = None,
) -> int:
    """Writes the episodes of a recording to a Parquet file, a row for each TimeStep.

    Each row group has TimeSteps of one episode, of at most a sixteenth of `Limits.chunk_bytes`: for
    each byte of an image Parquet takes 25 while a row group is written.

    The columns are `connection`, `world`, `row` (of a batched world; otherwise null), `episode`,
    `step` (0 for the first TimeStep), `time` (when it was received, in UTC), `step_type` (FIRST,
    MID or LAST), `end` (that of the episode),
    `reward`, `discount`, and `observation.NAME` and `action.NAME` for each observation and action.
    The action of a row is the one that led to its TimeStep; it is null in the first. Scalars are
    scalars; arrays of a fixed shape have the type `arrow.fixed_shape_tensor`; others, and those
    without elements, are lists.

    Args:
      path: the recording.
      out: the file to write, which must not exist.
      limits: as for `recording.episodes`; one TimeStep may take a sixteenth of `chunk_bytes`.
      on_episode: called with each episode that was written.

    Returns:
      The number of episodes.

    Raises:
      RecordingError: the recording cannot be read or has no episodes, the file exists, or the specs
        differ from episode to episode, an observation has no type in Parquet, or a TimeStep exceeds
        the limits, or the file cannot be written. No part of the file is left.
    """
    check_reading(path, limits)
    arguments.function("on_episode", on_episode, none="None")
    out = Path(arguments.path("out", out))
    try:
        file = open(out, "xb")  # noqa: SIM115 - closed below, and removed unless it is complete.
    except FileExistsError as error:
        raise RecordingError(f"cannot export to {out}: there is a file already") from error
    except OSError as error:
        raise RecordingError(f"cannot export to {out}: {error}") from error
    count = 0
    writer = None
    try:
        for episode in episodes(path, limits):
            for rows in _row_groups(episode, limits):
                with _writing(out, f"episode {episode.number} of {path}"):
                    columns = _columns(episode, rows)
                    found = pa.schema([(name, column.type) for name, column in columns.items()])
                    if writer is None:
                        schema = found
                        writer = pyarrow.parquet.ParquetWriter(file, schema)
                    if found != schema:
                        raise RecordingError(
                            f"episode {episode.number} of {path} has other actions or observations "
                            "than those before, and the rows of a Parquet file have one type; "
                            f"{_difference(schema, found)}"
                        )
                    writer.write_table(pa.table(columns, schema=schema))
                    pa.default_memory_pool().release_unused()
            if on_episode is not None:
                on_episode(episode)
            count += 1
        if writer is None:
            raise RecordingError(f"{path} has no episodes that could be exported")
        with _writing(out, "the end"):
            writer.close()
            file.close()
    except BaseException:
        out.unlink(missing_ok=True)
        # What they would still write fails as before, or goes to no file.
        with contextlib.suppress(OSError, pa.ArrowException):
            if writer is not None:
                writer.close()
        if writer is not None:
            writer.is_open = False  # Its finalizer would write again.
        with contextlib.suppress(OSError):
            file.close()
        raise
    return count


@contextlib.contextmanager
def _writing(out: Path, what: str) -> Iterator[None]:
    """Raises RecordingError for what Arrow or the file cannot take."""
    try:
        yield
    except (OSError, OverflowError, pa.ArrowException) as error:
        raise RecordingError(f"cannot export {what} to {out}: {error}") from error


def _row_groups(episode: Episode, limits: Limits) -> Iterator[slice]:
    """Yields the TimeSteps of each row group."""
    most, begin, total = limits.chunk_bytes // TIMESTEP_PART, 0, 0
    for index, size in enumerate(exported_sizes(episode, limits)):
        total += size
        if total > most:
            yield slice(begin, index)
            begin, total = index, size
    yield slice(begin, len(episode))


def _columns(episode: Episode, rows: slice) -> dict[str, Any]:
    steps = episode.flat_timesteps[rows]
    length = len(steps)
    columns: dict[str, Any] = {
        "connection": pa.array([episode.connection.number] * length, pa.int32()),
        "world": pa.array([episode.world_name] * length, pa.string()),
        "row": pa.array([episode.row] * length, pa.int32()),
        "episode": pa.array([episode.number] * length, pa.int64()),
        "step": pa.array(range(*rows.indices(len(episode))), pa.int64()),
        "time": pa.array(episode.nanoseconds[rows], pa.timestamp("ns", tz="UTC")),
        "step_type": pa.array([StepType(step.step_type).name for step in steps], pa.string()),
        "end": pa.array([episode.end] * length, pa.string()),
    }
    for name, values in (
        (REWARD, [step.reward for step in steps]),
        (DISCOUNT, [step.discount for step in steps]),
    ):
        spec = episode.observation_specs.get(name, specs.Array((), np.float64))
        columns[name] = _column(name, values, spec)
    for name, spec in episode.observation_specs.items():
        if name not in (REWARD, DISCOUNT):
            values = [step.observation.get(name) for step in steps]
            columns[f"observation.{name}"] = _column(f"observation {name!r}", values, spec)
    for name, spec in episode.action_specs.items():
        values = [action.get(name) for action in episode.flat_actions[rows]]
        columns[f"action.{name}"] = _column(f"action {name!r}", values, spec)
    return columns


def _column(name: str, values: list[Any], spec: specs.Array) -> Any:
    """Returns values of a spec, where None is null, as an array of Arrow."""
    if isinstance(spec, specs.StringArray):
        element = pa.string()
    else:
        try:
            element = pa.from_numpy_dtype(spec.dtype)
        except (pa.ArrowNotImplementedError, TypeError) as error:
            raise RecordingError(f"{name} has no type in Parquet: {error}") from error
    if not spec.shape:
        plain = [None if value is None else np.asarray(value).item() for value in values]
        return pa.array(plain, element)
    if is_list(spec):
        for _ in spec.shape:
            element = pa.list_(element)
        lists = [None if value is None else np.asarray(value).tolist() for value in values]
        return pa.array(lists, element)
    tensor = pa.fixed_shape_tensor(element, spec.shape)
    size = int(np.prod(spec.shape))
    flat = np.zeros((len(values), size), spec.dtype)
    for row, value in zip(flat, values, strict=True):
        if value is not None:
            row[:] = np.ravel(value)
    storage = pa.FixedSizeListArray.from_arrays(
        pa.array(flat.reshape(-1), element),
        type=pa.list_(element, size),
        mask=pa.array([value is None for value in values]),
    )
    return pa.ExtensionArray.from_storage(tensor, storage)


def _difference(schema: Any, found: Any) -> str:
    before, after = ({str(field) for field in each} for each in (schema, found))
    return f"only before: {sorted(before - after)}; only here: {sorted(after - before)}"
