"""HTML of TimeSteps, single or stacked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dm_env
import numpy as np

from dm_env_rpc_client.tensors.displays import images, markup, plots
from dm_env_rpc_client.tensors.displays.leaves import named_leaves
from dm_env_rpc_client.tensors.displays.values import image_html, show_value

_MAX_FRAMES, _LARGE_FRAME = 8, 100
_MAX_LINES = 8
_FRAME_PIXELS = 640


def show_timestep(timestep: dm_env.TimeStep) -> str:
    """Returns a TimeStep as HTML.

    If its fields have a leading axis, as those of `unroll` [T, ...] and of a batched
    environment [B, ...], it is shown as rows of images and as plots over that axis.
    """
    show: Callable[[Any], str] = show_value
    if np.ndim(timestep.step_type):
        types = np.ravel(timestep.step_type)
        counts = ", ".join(f"{int(np.sum(types == one))} {one.name}" for one in dm_env.StepType)
        show, title = _show_series, f"{len(types)} TimeSteps: {counts}"
    else:
        title = f"TimeStep {_step_type_name(timestep.step_type)}"
    rows = [*_rows(timestep.reward, "reward", show), *_rows(timestep.discount, "discount", show)]
    observed = _rows(timestep.observation, "observation", show)
    return markup.section(title, markup.table(("", ""), rows)) + markup.section(
        "Observations", markup.table(("name", "value"), observed)
    )


def _rows(structure: Any, root: str, show: Callable[[Any], str]) -> list[tuple[str, str]]:
    if structure is None:
        return [(f"<b>{root}</b>", show_value(None))]
    return [
        (f"<b>{markup.escape(name, 200)}</b>", show(value))
        for name, value in named_leaves(structure, root).items()
    ]


def _show_series(values: Any) -> str:
    array = np.asarray(values)
    is_few_lines = array.ndim == 1 or (array.ndim == 2 and array.shape[1] <= _MAX_LINES)
    if is_few_lines and array.dtype.kind in "biuf" and array.size > 1:
        return plots.line(array, width=420, height=64 if array.ndim == 1 else 96)
    if array.ndim > 1 and array.size and images.is_image(array.shape[1:], array.dtype):
        most = _MAX_FRAMES if array.shape[2] < _LARGE_FRAME else _MAX_FRAMES // 2
        frames = array[np.linspace(0, len(array) - 1, min(len(array), most)).astype(int)]
        strip = image_html(images.montage(frames), _FRAME_PIXELS)
        return f"{strip}<div>{len(frames)} of {len(array)}, each {list(array.shape[1:])}</div>"
    return show_value(array)


def _step_type_name(step_type: Any) -> str:
    try:
        return str(dm_env.StepType(step_type).name)
    except ValueError:
        return repr(step_type)
