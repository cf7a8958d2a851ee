"""Conversion of Gymnasium spaces to JSON and back. Needs `gymnasium`.

A space is encoded as an object with its `type` and its constructor arguments, whose values are
encoded as in `value_json`. A bound that all elements share is encoded as a single number:

    {"type": "Box", "shape": [4], "dtype": "float32", "low": -1.0, "high": 1.0}
    {"type": "Box", ..., "low": 0, "high": 127, "bounded_above": false}
    {"type": "Dict", "spaces": [["x", {"type": "Discrete", "n": 3, "start": 0, "dtype": "int64"}]]}

The module `bridges.gym_socket.space_json` implements the JSON format of gym-socket-api, which
supports fewer types of spaces and neither dtypes nor infinite bounds.

Because integers have no infinity, an unbounded Box of integers has the bounds of its dtype. The
masks `bounded_below` and `bounded_above` of a Box change how it samples.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from dm_env_rpc_client import arguments
from dm_env_rpc_client.adaptors.gymnasium.spaces import (
    Room,
    WideBox,
    multi_binary,
    one_bound,
    uniform_box,
)
from dm_env_rpc_client.adaptors.gymnasium.value_json import from_jsonable, to_jsonable
from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.tensors.casting import MAX_DIMENSIONS
from dm_env_rpc_client.tensors.memory_limits import DEFAULT

_TEXT_LENGTH = 4096
"""The maximum string length of a Text that replaces another type of string space."""

_CHARACTERS = string.printable

_SIDES = ("bounded_below", "bounded_above")
"""The names, as attributes and JSON keys, of the masks that mark a Box's bounded elements."""


def to_json(space: spaces.Space[Any], name: str, notes: list[str]) -> dict[str, Any]:
    """Convert a space to a JSON value.

    A space of another type is replaced by the nearest Gymnasium space: a subclass by its base
    class, a space of strings by a Text, and any other space by a Box of the same shape and dtype.

    Args:
      space: the space.
      name: the name of the space in notes and error messages.
      notes: the list to which a note on each replaced space is appended.

    Raises:
      SpecError: no Gymnasium space can replace the space.
    """
    for kind, write in _WRITERS.items():
        if isinstance(space, kind):
            if type(space) is not kind and not _is_own(space):
                notes.append(f"{name} is a {type(space).__name__}, sent as a {kind.__name__}")
            return {"type": kind.__name__, **write(space, name, notes)}
    alike = _from_gym(space)
    if alike is not None:
        return to_json(alike, name, notes)
    near = _nearest(space, name)
    notes.append(f"{name} is a {type(space).__name__}, sent as {near}")
    return to_json(near, name, notes)


def of_gymnasium(space: Any) -> spaces.Space[Any]:
    """Return a space, converted to Gymnasium if it is from the older package gym."""
    found = _from_gym(space)
    return space if found is None else found


def from_json(value: Any, where: str, room: Room | None = None) -> spaces.Space[Any]:
    """Convert a JSON value to a space.

    Args:
      value: the result of `to_json`.
      where: the name of the space in error messages.
      room: the memory budget for this and other spaces and their elements; None for the space of
        an environment in this process.

    Raises:
      ProtocolError: the value does not describe a space, describes too many spaces, or describes a
        space with elements that do not fit into a message.
    """
    try:
        count = _count(value)
        if count > DEFAULT.specs:
            raise ValueError(
                f"the value describes {count} spaces, but at most {DEFAULT.specs} are allowed"
            )
        room = room or Room()
        with room.element():
            return _read(value, where, room)
    except ProtocolError:
        raise
    except Exception as error:
        text = arguments.cause(error)
        raise ProtocolError(f"{where}: invalid space {arguments.shown(value)}: {text}") from error


_OF_GYM: dict[str, Callable[[Any], spaces.Space[Any]]] = {
    "Box": lambda own: spaces.Box(own.low, own.high, own.shape, own.dtype),
    "Discrete": lambda own: spaces.Discrete(int(own.n), start=int(getattr(own, "start", 0))),
    "MultiBinary": lambda own: spaces.MultiBinary(own.n),
    "MultiDiscrete": lambda own: spaces.MultiDiscrete(own.nvec),
    "Dict": lambda own: spaces.Dict({key: of_gymnasium(own[key]) for key in own.spaces}),
    "Tuple": lambda own: spaces.Tuple(map(of_gymnasium, own.spaces)),
}


def _from_gym(space: Any) -> spaces.Space[Any] | None:
    for base in type(space).__mro__:
        convert = _OF_GYM.get(base.__name__)
        if convert is not None and base.__module__.partition(".")[0] == "gym":
            return convert(space)
    return None


def _is_own(space: spaces.Space[Any]) -> bool:
    """Whether a space's type is one of this package's variants, which differ only in sampling."""
    return type(space).__module__.startswith("dm_env_rpc_client.")


def _nearest(space: spaces.Space[Any], name: str) -> spaces.Space[Any]:
    if space.dtype is not None and np.dtype(space.dtype).kind == "U":
        return spaces.Text(_TEXT_LENGTH, min_length=0, charset=_CHARACTERS)
    if space.shape is None or space.dtype is None or np.dtype(space.dtype).kind not in "iuf":
        raise SpecError(
            f"the {name} space is a {type(space).__name__}, which cannot be represented by any of "
            f"Gymnasium's spaces: {', '.join(kind.__name__ for kind in _WRITERS)}"
        )
    dtype: Any = np.dtype(space.dtype)
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, space.shape, dtype.type)
    info = np.iinfo(dtype)
    bounds = [np.full(space.shape, bound, dtype) for bound in (info.min, info.max)]
    return spaces.Box(bounds[0], bounds[1], dtype=dtype.type)


def _bound(array: Any) -> Any:
    """Convert an array to a JSON value, which is a single number if all elements are equal."""
    array = np.asarray(array)
    same = array.size > 0 and bool(np.all(array == array.flat[0]))
    return to_jsonable(array.flat[0].item() if same else array)


def _write_box(space: spaces.Box, name: str, notes: list[str]) -> dict[str, Any]:
    value = {
        "shape": list(space.shape),
        "dtype": np.dtype(space.dtype).name,
        "low": _bound(one_bound(space, "low")),
        "high": _bound(one_bound(space, "high")),
    }
    if np.dtype(space.dtype).kind == "i":
        masks = {side: one_bound(space, side) for side in _SIDES}
        value |= {side: _bound(mask) for side, mask in masks.items() if not mask.all()}
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


def _count(value: Any) -> int:
    """Return the number of spaces in a description."""
    if not isinstance(value, list | Mapping):
        return 0
    parts = value.values() if isinstance(value, Mapping) else value
    is_space = isinstance(value, Mapping) and "type" in value
    return is_space + sum(map(_count, parts))


def _read(value: Any, where: str, room: Room) -> spaces.Space[Any]:
    if not isinstance(value, Mapping) or value.get("type") not in _READERS:
        shown = arguments.shown(value)
        raise ProtocolError(f'{where}: expected an object with the "type" of a space, got {shown}')
    return _READERS[value["type"]](value, where, room)


def _read_box(value: Mapping[str, Any], where: str, room: Room) -> spaces.Space[Any]:
    dtype: Any = np.dtype(value["dtype"])
    shape = tuple(int(size) for size in value["shape"])
    if any(size < 0 for size in shape) or len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"shape {shape}")
    room.check_element(shape, dtype, where)
    low, high = (_bounds(value[key], shape, dtype, where, room) for key in ("low", "high"))
    masks = {}
    for side in _SIDES:
        if dtype.kind == "i" and side in value:
            masks[side] = np.asarray(from_jsonable(value[side], where))
            if masks[side].dtype != np.bool_ or masks[side].shape not in ((), shape):
                raise ValueError(f"{side} is {masks[side].dtype} {masks[side].shape}")
    if not any(array.ndim for array in (low, high, *masks.values())):
        box = uniform_box(low.item(), high.item(), shape, dtype, room, exact=False)
    else:
        box = spaces.Box(_filled(low, shape), _filled(high, shape), dtype=dtype.type)
    for side, mask in masks.items():
        if isinstance(box, WideBox):
            box.bound_by(side, bool(mask))
        else:
            setattr(box, side, _filled(mask, shape))
    return box


def _bounds(
    bound: Any, shape: tuple[int, ...], dtype: np.dtype[Any], where: str, room: Room
) -> npt.NDArray[Any]:
    """Return a bound as a scalar array, or as an array with the shape of its Box."""
    read = from_jsonable(bound, where)
    if isinstance(read, np.ndarray):
        room.expand(max(0, read.size * (dtype.itemsize - read.itemsize)))
    array = np.asarray(read, dtype)
    if array.shape not in ((), shape):
        raise ValueError(f"a bound has shape {array.shape}; expected () or {shape}")
    return array


def _filled(array: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    return array if array.shape == shape else np.array(np.broadcast_to(array, shape))


def _read_multi_binary(value: Mapping[str, Any], where: str, room: Room) -> spaces.Space[Any]:
    sizes = value["n"] if isinstance(value["n"], list) else [value["n"]]
    if len(sizes) > MAX_DIMENSIONS:
        raise ValueError(f"{len(sizes)} dimensions")
    shape = tuple(int(size) for size in sizes)
    room.check_element(shape, np.dtype(np.int8), where)
    return multi_binary(value["n"], shape, room)


def _read_multi_discrete(value: Mapping[str, Any], where: str, room: Room) -> spaces.Space[Any]:
    dtype: Any = np.dtype(value["dtype"])
    nvec, start = (np.asarray(from_jsonable(value[key], where)) for key in ("nvec", "start"))
    room.check_element(nvec.shape, dtype, where)
    room.expand(max(0, nvec.size * (2 * dtype.itemsize - nvec.itemsize - start.itemsize)))
    return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)


def _read_text(value: Mapping[str, Any], where: str, room: Room) -> spaces.Space[Any]:
    room.take_characters(len(value["charset"]))
    return spaces.Text(
        value["max_length"], min_length=value["min_length"], charset=value["charset"]
    )


def _read_dict(value: Mapping[str, Any], where: str, room: Room) -> spaces.Space[Any]:
    pairs = [(from_jsonable(key, where), _read(part, where, room)) for key, part in value["spaces"]]
    return spaces.Dict(pairs)  # As pairs, because their order is the order of seeding.


def _read_parts(value: Mapping[str, Any], where: str, room: Room) -> list[spaces.Space[Any]]:
    return [_read(part, where, room) for part in value["spaces"]]


def _read_alone(value: Any, where: str, room: Room) -> spaces.Space[Any]:
    """Read a space whose elements may be missing from elements of the enclosing space."""
    with room.element():
        return _read(value, where, room)


def _read_graph(value: Mapping[str, Any], where: str, room: Room) -> spaces.Space[Any]:
    edges = value["edge_space"]
    return spaces.Graph(
        cast("Any", _read_alone(value["node_space"], where, room)),
        None if edges is None else cast("Any", _read_alone(edges, where, room)),
    )


_READERS: dict[str, Callable[[Mapping[str, Any], str, Room], spaces.Space[Any]]] = {
    "Box": _read_box,
    "Discrete": lambda value, where, room: _discrete(value),
    "MultiBinary": _read_multi_binary,
    "MultiDiscrete": _read_multi_discrete,
    "Text": _read_text,
    "Dict": _read_dict,
    "Tuple": lambda value, where, room: spaces.Tuple(_read_parts(value, where, room)),
    "OneOf": lambda value, where, room: spaces.OneOf(
        [_read_alone(part, where, room) for part in value["spaces"]]
    ),
    "Sequence": lambda value, where, room: spaces.Sequence(
        _read_alone(value["space"], where, room), stack=value["stack"]
    ),
    "Graph": _read_graph,
}


def _discrete(value: Mapping[str, Any]) -> spaces.Discrete:
    dtype: Any = np.dtype(value["dtype"])
    if dtype == np.int64:
        return spaces.Discrete(value["n"], start=value["start"])
    # Only for other dtypes: Gymnasium before 1.3 has int64 alone and no such argument.
    return spaces.Discrete(value["n"], start=value["start"], dtype=dtype.type)
