"""The infos of rows are stacked as Gymnasium stacks them, whatever they are."""

from __future__ import annotations

import enum
import pickle
import random
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest

from dm_env_rpc_client.adaptors.gymnasium import row_infos
from dm_env_rpc_client.adaptors.gymnasium.info_observation import encoded_stack
from dm_env_rpc_client.adaptors.gymnasium.row_infos import StackedInfos

COUNT = 6


@pytest.fixture(autouse=True, params=["one by one", "by key"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_infos, "_MANY", 1000 if request.param == "one by one" else 1)


class _Gymnasium:
    """One info after the other, by Gymnasium's own function."""

    num_envs = COUNT
    _add_info: Any = gymnasium.vector.VectorEnv._add_info

    def stacked(self, infos: Sequence[tuple[int, Any]]) -> tuple[str, list[int]]:
        """Returns the text of all, and the rows whose info cannot be stacked."""
        stacked: dict[str, Any] = {}
        failed = []
        for index, info in infos:
            if index not in failed:
                try:
                    stacked = self._add_info(stacked, info, index)
                except Exception:
                    failed.append(index)
        return encoded_stack(stacked, np.zeros(COUNT, np.bool_), True), failed


def _ours(infos: Sequence[tuple[int, Any]]) -> tuple[str, list[int]]:
    rows = StackedInfos(COUNT, True)
    for index, info in infos:
        rows.put(index, info)
    text, failures = rows.encoded(np.zeros(COUNT, np.bool_))
    assert rows.encoded(np.zeros(COUNT, np.bool_)) == ("", {})
    return text, sorted(failures)


def _joined(infos: Sequence[tuple[int, Any]]) -> tuple[str, list[int]]:
    """Those of two processes, each of which has some of the rows, in the one that has them all."""
    all_rows = StackedInfos(COUNT, True)
    middle = COUNT // 2
    for first, last in ((0, middle), (middle, COUNT)):
        part = all_rows.of(last - first)
        for index, info in infos:
            if first <= index < last:
                part.put(index - first, info)
        said, failures = part.taken()
        assert not failures
        assert part.taken() == ([], {})
        for index, own in pickle.loads(pickle.dumps(said)):
            all_rows.put_taken(first + index, own)
    text, failed = all_rows.encoded(np.zeros(COUNT, np.bool_))
    return text, sorted(failed)


class Key(str, enum.Enum):
    """Equal to a text, and written in another way."""

    A = "a"


INT, FLOAT, BOOL = {"a": 3}, {"a": 0.5}, {"a": True}

CASES: dict[str, list[dict[Any, Any]]] = {
    "truth after an integer": [INT, BOOL, INT],
    "too large": [INT, {"a": 2**63}, INT],
    "not a number": [{"a": float("nan")}, {"a": float("-inf")}, {"a": -0.0}],
    "a key with the name of a mask": [{"a": 1, "_a": 2}, {"a": 3, "_a": 0}],
    "keys that are equal and no text": [{1: 2}, {True: 3}, {1.0: 4}],
    "a key that is equal and has another text": [INT, {Key.A: 4}, INT],
    "a last observation": [{"final_obs": 1}, {"final_obs": 2}],
    "arrays": [{"a": np.arange(3)}, {"a": np.ones(3)}, {"a": np.ones(2)}],
    "a list after a number": [INT, {"a": [1]}, INT],
    "a dict after a number": [INT, {"a": {"b": 1}}, INT],
}
"""What random infos do not have."""


@pytest.mark.parametrize("name", CASES)
def test_infos_are_stacked_as_by_gymnasium(name: str) -> None:
    infos = list(enumerate(CASES[name]))
    assert _ours(infos) == _joined(infos) == _Gymnasium().stacked(infos)


def test_random_infos_are_stacked_as_by_gymnasium() -> None:
    chance = random.Random(0)
    parts: list[Any] = [0, 1, -7, 2**63, 0.25, True, "x", None, np.float32(2), np.int64(-1)]
    for _ in range(2000):
        some = chance.sample(parts, chance.choice([1, 1, 2, 4]))
        infos: list[tuple[int, dict[str, Any]]] = []
        for row in range(COUNT):
            if chance.random() < 0.9:
                names = chance.choice(["a", "ab", "ab", "ba", "abc"])
                infos.append((row, {name: chance.choice(some) for name in names}))
        assert _ours(infos) == _joined(infos) == _Gymnasium().stacked(infos), infos


def test_rows_that_step_together_are_stacked_in_the_order_of_the_rows() -> None:
    # The first row decides the dtype.
    infos = list(enumerate([FLOAT, INT, INT]))
    assert _ours(infos[::-1]) == _Gymnasium().stacked(infos)


def test_how_an_episode_ended_comes_before_the_info_of_the_next() -> None:
    rows = StackedInfos(COUNT, True)
    for row in range(COUNT):
        if row in (1, 2):  # The final info of row 2 does not fit that of row 1.
            rows.put_final(row, rows.final(np.zeros(2), {"a": np.zeros(row)}))
        rows.put(row, INT)
    text, failures = rows.encoded(np.zeros(COUNT, np.bool_))
    infos: list[tuple[int, Any]] = [(row, INT) for row in range(COUNT)]
    for row in (2, 1):
        final = {"final_obs": np.zeros(2), "final_info": {"a": np.zeros(row)}}
        infos.insert(row, (row, final))
    assert (text, sorted(failures)) == _Gymnasium().stacked(infos)
    assert list(failures) == [2]


def test_rows_without_infos_say_which_episodes_were_terminated_and_truncated() -> None:
    both = np.arange(COUNT) == 1
    assert StackedInfos(COUNT, True).encoded(both) == (encoded_stack({}, both, True), {})
