"""Each space of Gymnasium, as actions and observations: there and back, and in rows."""

from __future__ import annotations

import functools
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces

import dm_env_rpc_client as d
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from tests.transcripts.environments import SpaceMirror
from tests.transcripts.scene import Scenario, Scene

REMOTE = "dm_env_rpc_client.gymnasium:Remote-v0"

_f = np.float32

SPACES: dict[str, tuple[Any, Any, Any]] = {
    "Box": (spaces.Box(-1, 1, (2,), _f), np.zeros(2, _f), np.array([0.5, -1], _f)),
    "Box of its own bounds": (
        spaces.Box(np.array([-1, 0]), np.array([1, np.inf]), dtype=np.float64),
        np.zeros(2),
        np.array([0.5, 7]),
    ),
    "Box of uint8": (
        spaces.Box(0, 255, (2, 2, 1), np.uint8),
        np.zeros((2, 2, 1), np.uint8),
        np.full((2, 2, 1), 200, np.uint8),
    ),
    "Box of one number": (spaces.Box(-1, 1, (), _f), np.array(0, _f), np.array(0.5, _f)),
    "Discrete": (spaces.Discrete(4), np.int64(0), np.int64(3)),
    "Discrete that starts": (spaces.Discrete(4, start=-2), np.int64(-2), np.int64(1)),
    "MultiDiscrete": (spaces.MultiDiscrete([3, 5]), np.array([0, 0]), np.array([2, 4])),
    "MultiBinary": (
        spaces.MultiBinary(3),
        np.zeros(3, np.int8),
        np.array([1, 0, 1], np.int8),
    ),
    "Text": (spaces.Text(5), "", "abc"),
    "Tuple": (
        spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (1,), _f))),
        (np.int64(0), np.zeros(1, _f)),
        (np.int64(1), np.ones(1, _f)),
    ),
    "Dict": (
        spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Dict({"c": spaces.MultiBinary(2)})}),
        {"b": np.int64(0), "a": {"c": np.zeros(2, np.int8)}},
        {"b": np.int64(1), "a": {"c": np.ones(2, np.int8)}},
    ),
    "Dict of odd names": (
        spaces.Dict({"a.b": spaces.Discrete(2), "reward": spaces.Discrete(3), "%": spaces.Text(2)}),
        {"a.b": np.int64(0), "reward": np.int64(0), "%": ""},
        {"a.b": np.int64(1), "reward": np.int64(2), "%": "x"},
    ),
    "Sequence": (
        spaces.Sequence(spaces.Discrete(5)),
        (),
        (np.int64(1), np.int64(4)),
    ),
    "OneOf": (
        spaces.OneOf((spaces.Discrete(2), spaces.Box(0, 1, (1,), _f))),
        (np.int64(0), np.int64(1)),
        (np.int64(1), np.ones(1, _f)),
    ),
    "Graph": (
        spaces.Graph(spaces.Box(0, 1, (2,), _f), spaces.Discrete(3)),
        spaces.GraphInstance(np.zeros((1, 2), _f), np.zeros(0, np.int64), np.zeros((0, 2), int)),
        spaces.GraphInstance(np.ones((2, 2), _f), np.array([2]), np.array([[0, 1]])),
    ),
}


def mirrored(scene: Scene, name: str) -> None:
    space, first, action = SPACES[name]
    address = scene.serve(functools.partial(SpaceMirror, space, first))
    options: Any = {"address": address, "disable_env_checker": True}
    with scene.fails("in Gymnasium"), gymnasium.make(REMOTE, **options) as env:
        scene.see("space", repr(env.observation_space == space))
        scene.see("reset", env.reset(seed=1))
        scene.see("step", env.step(action))
    with scene.fails("in dm_env"), d.make(address) as plain:
        scene.see("spec", repr(plain.action_spec()), repr(plain.observation_spec()))
        scene.see("reset", plain.reset())


def in_rows(scene: Scene, name: str, num_batches: int | None) -> None:
    space, first, action = SPACES[name]
    address = scene.serve(functools.partial(SpaceMirror, space, first))
    with scene.fails("in rows"), RemoteVectorEnv(address, 2, num_batches=num_batches) as envs:
        scene.see("reset", envs.reset(seed=1))
        actions = gymnasium.vector.utils.concatenate(
            space,
            [action, first],
            cast("Any", gymnasium.vector.utils.create_empty_array(space, 2)),
        )
        scene.see("step", envs.step(actions))


SCENARIOS: dict[str, Scenario] = {
    **{name: Scenario(functools.partial(mirrored, name=name)) for name in SPACES},
    **{
        f"{name}, in rows": Scenario(functools.partial(in_rows, name=name, num_batches=None))
        for name in SPACES
        if name not in ("Box of one number", "Box of its own bounds", "Discrete", "MultiBinary")
    },
    **{
        f"{name}, on streams": Scenario(functools.partial(in_rows, name=name, num_batches=0))
        for name in ("Discrete that starts", "Dict", "Sequence")
    },
}
