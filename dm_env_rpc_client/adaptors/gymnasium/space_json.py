"""Gymnasium's spaces as JSON. Needs `gymnasium`.

A space is an object with its `type` and the arguments that make it, values as in
`values`. Bounds that are the same for all elements are one number:

    {"type": "Box", "shape": [4], "dtype": "float32", "low": -1.0, "high": 1.0}
    {"type": "Box", ..., "low": 0, "high": 127, "bounded_above": false}
    {"type": "Dict", "spaces": [["x", {"type": "Discrete", "n": 3, "start": 0, "dtype": "int64"}]]}

The JSON of `gym_socket.spaces` is that of another protocol, which has neither dtypes nor
infinities and fewer spaces.

An integer has no infinity: where a Box of integers is not bounded, its bounds are those of the
dtype, and `bounded_below` and `bounded_above` say so. It samples otherwise there.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from dm_env_rpc_client.adaptors.gymnasium.values import from_jsonable, to_jsonable
from dm_env_rpc_client.errors import ProtocolError, SpecError

__all__ = ["from_json", "to_json"]

_MAX_ELEMENTS = 1 << 25
"""Elements of the bounds of a space, all its parts together."""

_TEXT_LENGTH = 4096
"""The length of the longest text of a space that has texts, but is not a Text."""

_CHARACTERS = string.printable

_SIDES = ("bounded_below", "bounded_above")
"""Which elements of a Box are bounded, bool [...]: attributes of it, and keys of its JSON."""


def to_json(space: spaces.Space[Any], name: str, notes: list[str]) -> dict[str, Any]:
    """Returns the JSON value of a space.

    A space of another type becomes the nearest that Gymnasium has: that of which it is a
    subclass; a Text, if its elements are strings; otherwise a Box of its shape and dtype.

    Args:
      space: the space.
      name: what it is called in notes and errors.
      notes: a note on each space that was replaced is appended to it.

    Raises:
      SpecError: there is no space that is near.
    """
    for kind, write in _WRITERS.items():
        if isinstance(space, kind):
            if type(space) is not kind and not _is_own(space):
                notes.append(f"{name} is a {type(space).__name__}, sent as a {kind.__name__}")
            return {"type": kind.__name__, **write(space, name, notes)}
    near = _nearest(space, name)
    notes.append(f"{name} is a {type(space).__name__}, sent as {near}")
    return to_json(near, name, notes)


def from_json(value: Any, where: str) -> spaces.Space[Any]:
    """Returns the space of a JSON value.

    Args:
      value: what `to_json` returned.
      where: what it is called in errors.

    Raises:
      ProtocolError: it does not describe a space, or a very large one.
    """
    try:
        if _elements(value) > _MAX_ELEMENTS:
            raise ValueError(f"more than {_MAX_ELEMENTS} elements")
        return _read(value, where)
    except ProtocolError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise ProtocolError(f"{where}: invalid space {str(value)[:60]}: {text}") from error


def _is_own(space: spaces.Space[Any]) -> bool:
    """Whether its type is one of this package, which only samples in another way."""
    return type(space).__module__.startswith("dm_env_rpc_client.")


def _nearest(space: spaces.Space[Any], name: str) -> spaces.Space[Any]:
    if space.dtype is not None and np.dtype(space.dtype).kind == "U":
        return spaces.Text(_TEXT_LENGTH, min_length=0, charset=_CHARACTERS)
    if space.shape is None or space.dtype is None or np.dtype(space.dtype).kind not in "iuf":
        raise SpecError(
            f"the {name} space is a {type(space).__name__}, which is not near a space of "
            f"Gymnasium: {', '.join(kind.__name__ for kind in _WRITERS)}"
        )
    dtype: Any = np.dtype(space.dtype)
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, space.shape, dtype.type)
    info = np.iinfo(dtype)
    bounds = [np.full(space.shape, bound, dtype) for bound in (info.min, info.max)]
    return spaces.Box(bounds[0], bounds[1], dtype=dtype.type)


def _bound(array: Any) -> Any:
    """The JSON value of an array: one number if all elements are the same."""
    array = np.asarray(array)
    same = array.size > 0 and bool(np.all(array == array.flat[0]))
    return to_jsonable(array.flat[0].item() if same else array)


def _write_box(space: spaces.Box, name: str, notes: list[str]) -> dict[str, Any]:
    value = {
        "shape": list(space.shape),
        "dtype": np.dtype(space.dtype).name,
        "low": _bound(space.low),
        "high": _bound(space.high),
    }
    if np.dtype(space.dtype).kind == "i":
        value |= {side: _bound(mask) for side in _SIDES if not (mask := getattr(space, side)).all()}
    return value


def _write_discrete(space: spaces.Discrete, name: str, notes: list[str]) -> dict[str, Any]:
    dtype = np.dtype(space.dtype).name
    return {"n": int(space.n), "start": int(space.start), "dtype": dtype}


def _write_multi_binary(space: spaces.MultiBinary, name: str, notes: list[str]) -> dict[str, Any]:
    return {"n": list(space.n) if isinstance(space.n, tuple) else space.n}


def _write_multi_discrete(
    space: spaces.MultiDiscrete, name: str, notes: list[str]
) -> dict[str, Any]:
    return {
        "dtype": np.dtype(space.dtype).name,
        "nvec": to_jsonable(np.asarray(space.nvec)),
        "start": to_jsonable(np.asarray(space.start)),
    }


def _write_text(space: spaces.Text, name: str, notes: list[str]) -> dict[str, Any]:
    return {
        "min_length": space.min_length,
        "max_length": space.max_length,
        "charset": "".join(space.character_list),
    }


def _write_dict(space: spaces.Dict, name: str, notes: list[str]) -> dict[str, Any]:
    return {
        "spaces": [
            [to_jsonable(key), to_json(part, f"{name}.{key}", notes)]
            for key, part in space.spaces.items()
        ]
    }


def _write_parts(space: Any, name: str, notes: list[str]) -> dict[str, Any]:
    return {
        "spaces": [
            to_json(part, f"{name}.{index}", notes) for index, part in enumerate(space.spaces)
        ]
    }


def _write_sequence(space: spaces.Sequence, name: str, notes: list[str]) -> dict[str, Any]:
    return {
        "space": to_json(space.feature_space, f"{name}.element", notes),
        "stack": bool(space.stack),
    }


def _write_graph(space: spaces.Graph, name: str, notes: list[str]) -> dict[str, Any]:
    edges = space.edge_space
    return {
        "node_space": to_json(space.node_space, f"{name}.nodes", notes),
        "edge_space": None if edges is None else to_json(edges, f"{name}.edges", notes),
    }


_WRITERS: dict[type[spaces.Space[Any]], Callable[[Any, str, list[str]], dict[str, Any]]] = {
    spaces.Box: _write_box,
    spaces.Discrete: _write_discrete,
    spaces.MultiBinary: _write_multi_binary,
    spaces.MultiDiscrete: _write_multi_discrete,
    spaces.Text: _write_text,
    spaces.Dict: _write_dict,
    spaces.Tuple: _write_parts,
    spaces.OneOf: _write_parts,
    spaces.Sequence: _write_sequence,
    spaces.Graph: _write_graph,
}


def _elements(value: Any) -> int:
    """An upper bound of the elements of all parts, without making any of them."""
    if isinstance(value, list):
        return sum(map(_elements, value))
    if not isinstance(value, Mapping):
        return 1
    shape = value.get("shape")
    if value.get("type") == "MultiBinary":
        shape = value["n"] if isinstance(value["n"], list) else [value["n"]]
    own = math.prod(abs(int(size)) for size in shape) if isinstance(shape, list) else 1
    return own + sum(_elements(part) for part in value.values())


def _read(value: Any, where: str) -> spaces.Space[Any]:
    if not isinstance(value, Mapping) or value.get("type") not in _READERS:
        raise ProtocolError(f'{where}: expected an object with the "type" of a space, got {value}')
    return _READERS[value["type"]](value, where)


def _read_box(value: Mapping[str, Any], where: str) -> spaces.Space[Any]:
    dtype: Any = np.dtype(value["dtype"])
    shape = tuple(int(size) for size in value["shape"])
    bounds = []
    for key in ("low", "high"):
        bound = np.asarray(from_jsonable(value[key], where), dtype)
        if bound.shape not in ((), shape):
            raise ValueError(f"{key} has shape {bound.shape}")
        bounds.append(np.array(np.broadcast_to(bound, shape)))
    box = spaces.Box(bounds[0], bounds[1], dtype=dtype.type)
    for side in _SIDES:
        if dtype.kind == "i" and side in value:
            mask = np.asarray(from_jsonable(value[side], where))
            if mask.dtype != np.bool_ or mask.shape not in ((), shape):
                raise ValueError(f"{side} is {mask.dtype} {mask.shape}")
            setattr(box, side, np.array(np.broadcast_to(mask, shape)))
    return box


def _read_multi_discrete(value: Mapping[str, Any], where: str) -> spaces.Space[Any]:
    dtype: Any = np.dtype(value["dtype"])
    nvec, start = (from_jsonable(value[key], where) for key in ("nvec", "start"))
    return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)


def _read_text(value: Mapping[str, Any], where: str) -> spaces.Space[Any]:
    return spaces.Text(
        value["max_length"], min_length=value["min_length"], charset=value["charset"]
    )


def _read_dict(value: Mapping[str, Any], where: str) -> spaces.Space[Any]:
    pairs = [(from_jsonable(key, where), _read(part, where)) for key, part in value["spaces"]]
    return spaces.Dict(pairs)  # Pairs keep their order, in which the parts are seeded.


def _read_graph(value: Mapping[str, Any], where: str) -> spaces.Space[Any]:
    nodes: Any = _read(value["node_space"], where)
    edges: Any = None if value["edge_space"] is None else _read(value["edge_space"], where)
    return spaces.Graph(nodes, edges)


_READERS: dict[str, Callable[[Mapping[str, Any], str], spaces.Space[Any]]] = {
    "Box": _read_box,
    "Discrete": lambda value, where: _discrete(value),
    "MultiBinary": lambda value, where: spaces.MultiBinary(value["n"]),
    "MultiDiscrete": _read_multi_discrete,
    "Text": _read_text,
    "Dict": _read_dict,
    "Tuple": lambda value, where: spaces.Tuple([_read(part, where) for part in value["spaces"]]),
    "OneOf": lambda value, where: spaces.OneOf([_read(part, where) for part in value["spaces"]]),
    "Sequence": lambda value, where: spaces.Sequence(
        _read(value["space"], where), stack=value["stack"]
    ),
    "Graph": _read_graph,
}


def _discrete(value: Mapping[str, Any]) -> spaces.Discrete:
    dtype: Any = np.dtype(value["dtype"])
    if dtype == np.int64:
        return spaces.Discrete(value["n"], start=value["start"])
    # Gymnasium before 1.3 has int64 only, and no such argument.
    return spaces.Discrete(value["n"], start=value["start"], dtype=dtype.type)
