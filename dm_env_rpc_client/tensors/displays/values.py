"""HTML that displays values and TimeSteps as images, plots or text."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import dm_env
import numpy as np
from google.protobuf import message as protobuf_message

from dm_env_rpc_client.tensors.displays import images, markup, plots
from dm_env_rpc_client.tensors.displays.markup import named_leaves
from dm_env_rpc_client.tensors.displays.spec_tables import ANY, Range

IMAGE_SIDE = 240
"""The length of the longer side of an image on the page, in pixels."""

_MAX_NUMBERS = 8
_MAX_TEXTS = 8
_MAX_ELEMENTS = 1_000_000


def show_value(value: Any, bounds: Range = ANY) -> str:
    """Render a value as HTML of limited size.

    Args:
      value: an array, a number, a string, a message, or None.
      bounds: the range that the spec allows, for the colour scale of an image.
    """
    if value is None:
        return '<i style="opacity:0.6">none</i>'
    if isinstance(value, str | bytes | protobuf_message.Message):
        return markup.preformatted(value if isinstance(value, str) else repr(value))
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        return _show_objects(array)
    if array.ndim == 0:
        return plots.number(array)
    if images.is_image(array.shape, array.dtype):
        try:
            return image_html(images.picture(array, bounds.low, bounds.high))
        except ModuleNotFoundError:
            # The imaging libraries come with the extra `notebook`.
            return _summary(array)
    if array.size == 0:
        return f'<i style="opacity:0.6">no elements, shape {list(array.shape)}</i>'
    if array.ndim == 1:
        return _show_vector(array)
    return _summary(array)


def in_short(value: Any) -> str:
    """Format a value as a short plain-text string."""
    array = np.asarray(value)
    if array.ndim == 0:
        text = plots.number(array, 4) if array.dtype.kind in "biuf" else repr(array.item())
    else:
        text = np.array2string(array, precision=3, threshold=8)
    return markup.shorten(" ".join(text.split()), 60)


def image_html(picture: images.Picture, side: int = IMAGE_SIDE) -> str:
    """Return an HTML element that contains a picture.

    Args:
      picture: the picture.
      side: the length of the picture's longer side on the page, in pixels.
    """
    width, height = picture.shown_size(side)
    data = base64.b64encode(picture.data).decode()
    return (
        f'<img src="data:image/{picture.format};base64,{data}" width="{width}" height="{height}" '
        'style="image-rendering:pixelated;border-radius:3px;margin:2px 0">'
    )


def _show_vector(array: Any) -> str:
    if array.size == 1:
        return plots.number(array[0])
    drawn = _sample(array)
    plot = plots.bars(drawn) if drawn.size <= plots.MAX_BARS else plots.line(drawn)
    if array.size > _MAX_NUMBERS:
        return plot + _small(_statistics(array))
    return plot + _small(", ".join(plots.number(element) for element in array))


def _show_objects(array: Any) -> str:
    elements = [element for element, _ in zip(array.flat, range(_MAX_TEXTS), strict=False)]
    texts = [element if isinstance(element, str) else repr(element) for element in elements]
    if array.ndim == 0:
        return markup.preformatted(texts[0])
    more = f"<br>… and {array.size - len(texts)} more" if array.size > len(texts) else ""
    return "<br>".join(map(markup.preformatted, texts)) + more


def _summary(array: Any) -> str:
    text = np.array2string(
        array, threshold=40, edgeitems=2, max_line_width=70, precision=4, suppress_small=True
    )
    return markup.preformatted(text) + _small(f"shape {list(array.shape)}, {_statistics(array)}")


def _statistics(array: Any) -> str:
    sample = _sample(np.ravel(array))
    if sample.dtype.kind == "b":
        return f"{array.size} bools, {np.mean(sample):.0%} of them true"
    finite = sample[np.isfinite(sample)]
    if not finite.size:
        return f"{array.size} elements, none of them finite"
    low, high = plots.number(finite.min()), plots.number(finite.max())
    return f"{array.size} elements from {low} to {high}, mean {plots.number(np.mean(finite))}"


def _sample(flat: Any) -> Any:
    """Return every n-th element of a vector, up to `_MAX_ELEMENTS` elements in total."""
    return flat[:: 1 + flat.size // _MAX_ELEMENTS]


def _small(text: str) -> str:
    return f'<div style="opacity:0.7;font-size:smaller">{markup.escape(text)}</div>'


_MAX_FRAMES, _LARGE_FRAME = 8, 100
_MAX_LINES = 8
_FRAME_PIXELS = 640


def show_timestep(timestep: dm_env.TimeStep) -> str:
    """Render a TimeStep as HTML.

    If the fields of a TimeStep have a leading axis, as from `unroll` [T, ...] or a batched
    environment [B, ...], the TimeStep is shown as rows of images and plots over this axis.
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
