"""What an environment gets as an action, and what a client has of a space, however they travel."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import dm_env_rpc_client
from dm_env_rpc_client import BatchedEnvironment, DmEnvRpcError, SpecError
from dm_env_rpc_client.adaptors.gymnasium import make_remote
from dm_env_rpc_client.adaptors.gymnasium.space_json import from_json, to_json
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.errors import ProtocolError
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server
from dm_env_rpc_client.server import serve
from tests.adaptors.gymnasium.proxied import SPACES
from tests.adaptors.sameness import same
from tests.support.serving import one_file_server, own_server
from tests.travelling.environments.usual import Observing


class Keeping(Observing):
    """Observes samples of its space, and keeps the actions of all of its kind in `actions`."""

    def __init__(self, space: spaces.Space[Any], actions: list[Any]):
        super().__init__(0, space)
        self.action_space = copy.deepcopy(space)
        self._actions = actions

    def step(self, action: Any) -> Any:
        self._actions.append(action)
        return super().step(action)


def _proxy(address: str, action: Any) -> None:
    with contextlib.closing(make_remote(address)) as env:
        env.reset(seed=1)
        env.step(action)


def _dm_env(address: str, action: Any) -> None:
    with dm_env_rpc_client.make(address) as env:
        env.reset()
        rows = action if isinstance(action, dict) else {"action": action}
        env.step(_named(rows, lambda value: value))


def _vector(num_batches: int) -> Callable[[str, Any], None]:
    def play(address: str, action: Any) -> None:
        with contextlib.closing(RemoteVectorEnv(address, 2, num_batches=num_batches)) as envs:
            envs.reset(seed=1)
            single = envs.single_action_space
            rows: Any = gymnasium.vector.utils.create_empty_array(single, 2)
            envs.step(gymnasium.vector.utils.concatenate(single, [action] * 2, rows))

    return play


def _named(action: Any, leaf: Callable[[Any], Any]) -> Any:
    """An action as clients of dm_env nest it."""
    if isinstance(action, tuple):
        action = {str(place): part for place, part in enumerate(action)}
    if isinstance(action, dict):
        return {name: _named(part, leaf) for name, part in action.items()}
    return leaf(action)


def _batched(address: str, action: Any) -> None:
    rows = action if isinstance(action, dict) else {"action": action}
    with BatchedEnvironment(address, 2) as env:
        env.reset()
        env.step(_named(rows, lambda value: np.stack([value] * 2)))


WAYS: dict[str, Callable[[str, Any], None]] = {
    "Remote-v0": _proxy,
    "make": _dm_env,
    "streams": _vector(0),
    "a batch": _vector(1),
    "BatchedEnvironment": _batched,
}


KINDS = spaces.Dict(
    {
        "plain": spaces.Discrete(3),
        "start": spaces.Discrete(5, start=-2),
        "int32": spaces.Discrete(3, dtype=np.int32),
        "unsigned": spaces.Discrete(3, start=5, dtype=np.uint64),
        "nested": spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Discrete(2, start=4)}),
        "box": spaces.Box(-1, 1, (), np.float32),
        "half": spaces.Box(-1, 1, (2,), np.float16),
        "small": spaces.Box(-3, 3, (2,), np.int16),
        "several": spaces.MultiDiscrete([2, 3]),
        "bits": spaces.MultiBinary(2),
        "text": spaces.Text(3),
        "pair": spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2))),
    }
)
"""What is sent as a number, an array or a text, and given as a sample is."""


def types(element: Any) -> Any:
    """The types of an element's parts, with the dtypes and shapes of arrays."""
    if isinstance(element, dict):
        return {key: types(part) for key, part in element.items()}
    if isinstance(element, tuple):
        return tuple(map(types, element))
    if isinstance(element, np.ndarray):
        return np.ndarray, element.dtype, element.shape
    return type(element)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("server", [own_server, one_file_server])
def test_an_action_is_of_the_type_of_the_space_s_samples(server: Any, way: str) -> None:
    actions: list[Any] = []
    sample = KINDS.sample()
    with server(lambda: Keeping(KINDS, actions)) as address:
        WAYS[way](address, sample)
    assert actions
    for action in actions:
        assert same(action, sample)
        assert types(action) == types(sample)
        assert action in KINDS


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("way", ["one", "batch"])
def test_a_tuple_of_another_length_is_refused_before_it_is_sent(way: str, number: int) -> None:
    actions: list[Any] = []
    space = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)])
    action: Any = (0 if way == "one" else np.zeros(2, np.int64),) * number
    with serve(lambda: Keeping(space, actions)) as server:
        remote: Any = (
            make_remote if way == "one" else functools.partial(RemoteVectorEnv, num_envs=2)
        )
        with contextlib.closing(remote(server.address)) as env:
            env.reset()
            with pytest.raises(SpecError, match="expected a tuple of 2 values, got "):
                env.step(action)
    assert not actions


def test_samples_of_the_one_file_server_s_environment_stay_as_they_were() -> None:
    expected = spaces.Discrete(1000, seed=3)
    drawn: list[Any] = []

    class Drawing(Keeping):
        def __init__(self) -> None:
            super().__init__(spaces.Discrete(1000), [])
            self.action_space.seed(3)

        def step(self, action: Any) -> Any:
            drawn.append(self.action_space.sample())
            return super().step(action)

    with one_file_server(Drawing) as address:
        for _ in range(2):
            _dm_env(address, 5)
    first = expected.sample()
    assert drawn == [first, first]


BOXES = {name: space for name, space in SPACES.items() if "bound" in name and "box" in name}


@pytest.mark.parametrize("name", BOXES)
@pytest.mark.parametrize("writer", [to_json, None])
def test_a_box_of_integers_without_bounds_stays_one(name: str, writer: Any) -> None:
    box: Any = copy.deepcopy(BOXES[name])
    value = dm_env_rpc_server._space_json(box) if writer is None else to_json(box, "x", [])
    found: Any = from_json(value, "x")
    assert found == box
    for manner in ("both", "below", "above"):
        assert found.is_bounded(manner) == box.is_bounded(manner)
    for side in ("bounded_below", "bounded_above"):
        np.testing.assert_array_equal(getattr(found, side), getattr(box, side))
    found.seed(5)
    box.seed(5)
    for _ in range(5):
        np.testing.assert_array_equal(found.sample(), box.sample())


def test_a_box_of_an_older_server_is_bounded() -> None:
    box: Any = from_json({"type": "Box", "shape": [2], "dtype": "int8", "low": 0, "high": 9}, "x")
    assert box.is_bounded()


@pytest.mark.parametrize("mask", [1, "no", {"$": "array", "dtype": "bool", "shape": [3],
                                          "base64": "AAAA"}])  # fmt: skip
def test_a_mask_of_bounds_of_another_form_is_refused(mask: Any) -> None:
    value = {"type": "Box", "shape": [2], "dtype": "int8", "low": 0, "high": 9}
    with pytest.raises(ProtocolError, match="bounded_above"):
        from_json({**value, "bounded_above": mask}, "x")


_PAIRS: Any = [("1", spaces.Discrete(2)), (1, spaces.Discrete(3))]
SAME_KEYS = spaces.Dict(_PAIRS)


@pytest.mark.parametrize("server", [own_server, one_file_server])
@pytest.mark.parametrize("space", [SAME_KEYS, spaces.Dict({"deep": SAME_KEYS})])
def test_keys_of_a_dict_that_have_the_same_name_are_refused(server: Any, space: Any) -> None:
    with server(lambda: Keeping(space, [])) as address:
        with pytest.raises(DmEnvRpcError) as caught:
            make_remote(address)
        for part in ("'1'", "1", "same name", "rename one"):
            assert part in str(caught.value)


def test_an_instance_with_such_keys_is_refused_at_once() -> None:
    with pytest.raises(SpecError, match="same name"):
        serve(Keeping(SAME_KEYS, []))


def test_keys_of_an_element_that_travels_as_json_may_be_of_any_kind() -> None:
    sequence = spaces.Sequence(SAME_KEYS)
    actions: list[Any] = []
    with serve(lambda: Keeping(sequence, actions)) as server:
        sample = ({"1": 1, 1: 2},)
        _proxy(server.address, sample)
    assert actions == [sample]
