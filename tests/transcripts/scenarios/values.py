"""Each dtype, bounds and structure, as action and observation: in a stream, and in rows."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from dm_env import specs

import dm_env_rpc_client as d
from dm_env_rpc_client.tensors.specs import VariableArray
from tests.transcripts.environments import Mirror
from tests.transcripts.scenarios.playing import see_steps
from tests.transcripts.scene import Scenario, Scene


class Named(NamedTuple):
    """A structure with names of its own."""

    left: Any
    right: Any


NUMBERS: dict[str, list[Any]] = {
    "float32": [0.1, -1.5, 1e-40, 3e38],
    "float64": [0.1, -1.5, -0.0, 1e300],
    "int8": [-128, 127, 0, 5],
    "int32": [-(2**31), 2**31 - 1, 0, 5],
    "int64": [-(2**63), 2**63 - 1, 0, 5],
    "uint8": [0, 255, 128, 5],
    "uint32": [0, 2**32 - 1, 128, 5],
    "uint64": [0, 2**64 - 1, 128, 5],
    "bool": [False, True, True, False],
    "str": ["", "caf\u00e9", "a\nb", "\U0001f600"],
}


def array(shape: tuple[int, ...], dtype: str, name: str) -> specs.Array:
    if dtype == "str":
        return specs.StringArray(shape, name=name)
    return specs.Array(shape, np.dtype(dtype), name)


def shapes(dtype: str) -> dict[str, specs.Array]:
    """A structure of each kind of shape."""
    return {
        "scalar": array((), dtype, "scalar"),
        "vector": array((4,), dtype, "vector"),
        "matrix": array((2, 3), dtype, "matrix"),
        "empty": array((0, 2), dtype, "empty"),
        "one": array((1,), dtype, "one"),
    }


def filled(spec: specs.Array, values: list[Any], step: int) -> Any:
    shape = [max(size, 2) if size < 0 else size for size in spec.shape]
    elements = [values[(step + i) % len(values)] for i in range(int(np.prod(shape)))]
    dtype = object if spec.dtype.kind in "OU" else spec.dtype
    return np.array(elements, dtype).reshape(shape)


def mirrored(scene: Scene, structure: Any, action: Any, rows: int | None = None) -> None:
    """Takes 3 steps with the actions of a function of the step."""
    address = scene.serve(functools.partial(_mirror, structure))
    with d.make(address, {} if rows is None else {"num_envs": rows}) as env:
        scene.see("specs", repr(env.action_spec()), repr(env.observation_spec()))
        with scene.fails("played"):
            see_steps(scene, env, action, 3)


def _mirror(structure: Any) -> Mirror:
    return Mirror(structure)


def of_dtype(dtype: str, rows: int | None = None) -> Any:
    def action(step: int) -> dict[str, Any]:
        made = {}
        for number, (name, spec) in enumerate(shapes(dtype).items()):
            value = filled(spec, NUMBERS[dtype], step + number)
            made[name] = value if rows is None else np.stack([value] * rows)
        return made

    return functools.partial(mirrored, structure=shapes(dtype), action=action, rows=rows)


def variable(scene: Scene) -> None:
    structure = {
        "numbers": VariableArray((-1,), np.int32, name="numbers"),
        "pairs": VariableArray((2, -1), np.float32, name="pairs"),
        "count": specs.Array((), np.int32, name="count"),
    }

    def action(step: int) -> dict[str, Any]:
        return {
            "numbers": np.arange(step, dtype=np.int32),
            "pairs": np.ones((2, step), np.float32),
            "count": step,
        }

    mirrored(scene, structure, action)


def _constant(action: Any) -> Any:
    return lambda step: action


BOUNDED: dict[str, specs.Array] = {
    "one for all": specs.BoundedArray((2,), np.float32, -1, 1),
    "one each": specs.BoundedArray((2,), np.float32, [-1, -2], [1, 2]),
    "from below": specs.BoundedArray((2,), np.float64, 0, np.inf),
    "of int8": specs.BoundedArray((2,), np.int8, -3, 4),
    "of uint8": specs.BoundedArray((2,), np.uint8, 1, 200),
    "of int32": specs.BoundedArray((2,), np.int32, [-5, 0], [5, 9]),
    "of int64": specs.BoundedArray((2,), np.int64, -(2**62), 2**62),
    "of uint32": specs.BoundedArray((2,), np.uint32, 0, 2**31),
    "of uint64": specs.BoundedArray((2,), np.uint64, 0, 2**63),
    "of one element": specs.BoundedArray((1,), np.float32, [-1], [1]),
    "discrete": specs.DiscreteArray(5),
}


def bounded(scene: Scene) -> None:
    structure = {name: _renamed(spec, name) for name, spec in BOUNDED.items()}
    mirrored(scene, structure, _constant({n: s.generate_value() for n, s in structure.items()}))


def bounded_rows(scene: Scene) -> None:
    structure = {name: _renamed(spec, name) for name, spec in BOUNDED.items()}
    rows = {name: np.stack([spec.generate_value()] * 2) for name, spec in structure.items()}
    mirrored(scene, structure, _constant(rows), 2)


def _renamed(spec: specs.Array, name: str) -> specs.Array:
    return spec.replace(name=name)


_A, _B = specs.Array((), np.int32, "a"), specs.Array((2,), np.float32, "b")
_a, _b = np.int32(1), np.array([0.5, 1.5], np.float32)

STRUCTURES: dict[str, tuple[Any, Any]] = {
    "nested": ({"x": {"y": {"z": _A}}, "b": _B}, {"x": {"y": {"z": _a}}, "b": _b}),
    "order": ({"z": _A, "a": _B, "m": _A}, {"a": _b, "z": _a, "m": _a}),
    "a list": ({"l": [_A, _B]}, {"l": {"0": _a, "1": _b}}),
    "a tuple": ((_A, {"deep": _B}), {"0": _a, "1": {"deep": _b}}),
    "a named tuple": (Named(_A, _B), {"left": _a, "right": _b}),
    "a name with a period": ({"w.x": _A, "w.y": _B}, {"w": {"x": _a, "y": _b}}),
    "one array": (_B, {"action": _b}),
    "no values": ({}, {}),
    "names of any kind": ({"": _A, "caf\u00e9 \n": _B}, {"": _a, "caf\u00e9 \n": _b}),
}


def structured(name: str, rows: int | None = None) -> Any:
    structure, action = STRUCTURES[name]
    if rows is not None:
        action = _stacked(action, rows)
    return functools.partial(mirrored, structure=structure, action=_constant(action), rows=rows)


def _stacked(value: Any, rows: int) -> Any:
    if isinstance(value, dict):
        return {name: _stacked(each, rows) for name, each in value.items()}
    return np.stack([value] * rows)


def rewards(scene: Scene) -> None:
    for spec in (specs.Array((2,), np.float32), specs.Array((), np.int64)):
        address = scene.serve(functools.partial(Mirror, {"a": _A}, spec))
        with d.make(address) as env:
            scene.see("spec", repr(env.reward_spec()))
            see_steps(scene, env, _constant({"a": 1}), 2)
        with d.BatchedEnvironment(address, 2) as envs:
            see_steps(scene, envs, _constant({"a": [1, 2]}), 2)


def cast(scene: Scene) -> None:
    """What a client may pass for an array, and what it may not; that sends nothing."""
    structure = {"n": specs.Array((), np.int32, "n"), "v": specs.Array((2,), np.float32, "v")}
    address = scene.serve(functools.partial(_mirror, structure))
    given: dict[str, Any] = {
        "Python's numbers": {"n": 3, "v": [1, 2.5]},
        "int64 and float64": {"n": np.int64(3), "v": np.ones(2)},
        "a bool": {"n": True, "v": (0, 1)},
        "a fraction": {"n": 1.5, "v": [0, 0]},
        "a large number": {"n": 2**40, "v": [0, 0]},
        "a text": {"n": "3", "v": [0, 0]},
        "another shape": {"n": 1, "v": [0, 0, 0]},
        "a name too many": {"n": 1, "v": [0, 0], "w": 1},
        "a name too few": {"n": 1},
        "no mapping": 3,
        "not contiguous": {"n": 1, "v": np.arange(4, dtype=np.float32)[::2]},
    }
    with d.make(address) as env:
        env.reset()
        for name, action in given.items():
            with scene.fails(name):
                scene.see(name, env.step(action))


def _sorted(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _sorted(value[name]) for name in sorted(value)}


def settings_of_all_kinds(scene: Scene) -> None:
    def make(**settings: Any) -> Mirror:
        # A message's map has no order.
        scene.see("at the server", _sorted(settings))
        return Mirror({"a": _A})

    address = scene.serve(make)
    settings = {
        "number": 1,
        "large": 2**63,
        "real": 0.5,
        "flag": True,
        "text": "caf\u00e9",
        "array": np.arange(3, dtype=np.uint8),
        "texts": ["a", "b"],
        "nested": {"deep": {"n": 1}, "m": [1.5, 2.5]},
        "scalar": np.float32(0.25),
    }
    with d.make(address, settings) as env:
        env.reset()
    with scene.fails("None"):
        d.make(address, {"number": None})
    with scene.fails("an object"):
        d.make(address, {"number": object()})


SCENARIOS: dict[str, Scenario] = {
    **{f"{dtype}": Scenario(of_dtype(dtype)) for dtype in NUMBERS},
    **{f"{dtype}, in rows": Scenario(of_dtype(dtype, 2)) for dtype in NUMBERS},
    "variable length": Scenario(variable),
    "bounds": Scenario(bounded),
    "bounds, in rows": Scenario(bounded_rows),
    **{f"structure: {name}": Scenario(structured(name)) for name in STRUCTURES},
    **{
        f"structure: {name}, in rows": Scenario(structured(name, 2))
        for name in ("nested", "order", "a tuple", "one array", "no values")
    },
    "rewards": Scenario(rewards),
    "casts": Scenario(cast),
    "settings": Scenario(settings_of_all_kinds),
}
