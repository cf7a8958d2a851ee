"""Episodes in Minari are those of the recording."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client.errors import RecordingError
from dm_env_rpc_client.recording import read
from dm_env_rpc_client.server import Catch, serve
from tests.recording.sessions import play, recorded
from tests.support.environments import Constant


def test_minari_has_the_episodes(path: Path, export_minari: Callable[..., int]) -> None:
    minari = pytest.importorskip("minari")

    with serve(Catch) as server:
        play(server.address, 12, record=path)
    assert export_minari(path, "catch/run-v0") == 3
    dataset = minari.load_dataset("catch/run-v0")
    for exported, episode in zip(dataset.iterate_episodes(), read(path).episodes, strict=True):
        timesteps = episode.timesteps
        np.testing.assert_array_equal(exported.observations, timesteps.observation["board"])
        np.testing.assert_array_equal(exported.actions, episode.actions["paddle"])
        np.testing.assert_array_equal(exported.rewards, timesteps.reward[1:])
        is_terminated = episode.end == "terminated"
        assert list(exported.terminations)[-1] == is_terminated
        assert list(exported.truncations)[-1] != is_terminated
    with pytest.raises(RecordingError, match="cannot export to Minari"):
        export_minari(path, "catch/run-v0")


NUMBERS = {
    "float32": specs.BoundedArray((2,), np.float32, -1, 1),
    "flag": specs.Array((), bool),
    "flags": specs.Array((2,), bool),
    "int8": specs.BoundedArray((), np.int8, -(2**7), 2**7 - 1),
    "int64": specs.BoundedArray((), np.int64, -(2**63), 2**63 - 1),
    "uint64": specs.BoundedArray((), np.uint64, 0, 2**64 - 1),
}


def test_minari_takes_numbers_of_all_sorts(path: Path, export_minari: Callable[..., int]) -> None:
    minari = pytest.importorskip("minari")

    from dm_env_rpc_client.adaptors.gymnasium.spaces import spec_to_space

    with recorded(path, lambda: Constant(NUMBERS, actions=NUMBERS)) as env:
        env.reset()
        env.step({name: spec.generate_value() for name, spec in env.action_spec().items()})
    assert export_minari(path, "numbers-v0") == 1
    dataset = minari.load_dataset("numbers-v0")
    (exported,) = dataset.iterate_episodes()
    (episode,) = read(path).episodes
    for name, values in episode.timesteps.observation.items():
        np.testing.assert_array_equal(exported.observations[name], values)
    for space in (dataset.action_space, dataset.observation_space):
        assert space == spec_to_space(NUMBERS, "the numbers")
    assert list(exported.terminations) == [True]
    assert list(exported.rewards) == [1.0]
    path = path.with_name("idle.mcap")
    with recorded(path, lambda: Constant(NUMBERS)) as env:
        env.reset()
        env.step({})
    with pytest.raises(RecordingError, match="has no actions"):
        export_minari(path, "idle-v0")
