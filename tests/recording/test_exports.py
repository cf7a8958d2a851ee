"""Episodes in Parquet and Minari are those of the recording."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs

pytest.importorskip("pyarrow")
from pyarrow import parquet

import dm_env_rpc_client
from dm_env_rpc_client.errors import RecordingError
from dm_env_rpc_client.recording import Episode, Recorder, read
from dm_env_rpc_client.recording.parquet import export_parquet
from dm_env_rpc_client.server import Catch, serve
from tests.recording.sessions import SETTINGS, play, recorded
from tests.support.environments import Constant


class Mixed(dm_env.Environment):
    """Observations of all sorts."""

    def action_spec(self) -> dict[str, specs.Array]:
        return {
            "force": specs.BoundedArray((2,), np.float64, -1, 1),
            "gear": specs.DiscreteArray(4, np.int8),
        }

    def observation_spec(self) -> dict[str, specs.Array]:
        return {
            "text": specs.StringArray(()),
            "flag": specs.Array((), bool),
            "frame": specs.BoundedArray((3, 2, 3), np.uint8, 0, 255),
            "speed": specs.Array((), np.float32),
        }

    def reset(self) -> dm_env.TimeStep:
        self._step = 0
        return dm_env.restart(self._observation())

    def step(self, action: Any) -> dm_env.TimeStep:
        self._step += 1
        if self._step == 3:
            return dm_env.truncation(1.5, self._observation())
        return dm_env.transition(0.5, self._observation())

    def _observation(self) -> dict[str, Any]:
        return {
            "text": f"step {self._step}",
            "flag": np.bool_(self._step % 2),
            "frame": np.full((3, 2, 3), self._step, np.uint8),
            "speed": np.float32(self._step / 4),
        }


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "run.mcap"
    with recorded(path, Mixed) as env:
        for _ in range(2):
            env.reset()
            for step in range(3):
                env.step({"force": [0.1 * step, -0.5], "gear": step})
        env.reset()
        env.step({"force": [0, 0], "gear": 3})
    return path


@pytest.fixture(scope="module")
def found(mixed: Path) -> list[Episode]:
    return read(mixed).episodes


def test_parquet_has_a_row_for_each_timestep(
    mixed: Path, found: list[Episode], tmp_path: Path
) -> None:
    out = tmp_path / "run.parquet"
    assert export_parquet(mixed, out) == 3
    table = parquet.read_table(out)
    steps = [step for episode in found for step in episode.flat_timesteps]
    assert table.num_rows == len(steps) == 10
    rows = table.to_pylist()
    assert [row["episode"] for row in rows] == [1] * 4 + [2] * 4 + [3] * 2
    assert [row["step"] for row in rows] == [*range(4), *range(4), *range(2)]
    assert [row["step_type"] for row in rows] == [step.step_type.name for step in steps]
    assert [row["reward"] for row in rows] == [step.reward for step in steps]
    assert [row["discount"] for row in rows] == [step.discount for step in steps]
    assert rows[-1]["end"] == "interrupted"
    frames = table.column("observation.frame").combine_chunks().to_numpy_ndarray()
    assert frames.dtype == np.uint8
    np.testing.assert_array_equal(frames, [step.observation["frame"] for step in steps])
    for name in ("text", "flag", "speed"):
        assert [row[f"observation.{name}"] for row in rows] == [
            step.observation[name] for step in steps
        ]
    gears = [row["action.gear"] for row in rows]
    assert gears == [None, 0, 1, 2, None, 0, 1, 2, None, 3]
    assert rows[0]["action.force"] is None
    assert rows[3]["action.force"] == [0.2, -0.5]
    nanoseconds = [time for episode in found for time in episode.nanoseconds]
    assert table.column("time").cast("int64").to_pylist() == nanoseconds
    with pytest.raises(RecordingError, match="there is a file already"):
        export_parquet(mixed, out)


def test_texts_flags_and_empty_arrays_in_parquet(path: Path) -> None:
    out = path.with_name("run.parquet")
    values: dict[str, Any] = {
        "words": np.array(["one", "two"], object),
        "nothing": np.empty((2, 0), np.float32),
        "flags": np.eye(2, dtype=bool),
        "number": np.int64(7),
    }
    words = {
        name: specs.StringArray((2,)) if name == "words" else specs.Array(value.shape, value.dtype)
        for name, value in values.items()
    }
    with recorded(path, lambda: Constant(words, values)) as env:
        env.reset()
    assert export_parquet(path, out) == 1
    (row,) = parquet.read_table(out).to_pylist()
    assert row["observation.words"] == ["one", "two"]
    assert row["observation.nothing"] == [[], []]
    assert row["observation.flags"] == [True, False, False, True]
    assert row["observation.number"] == 7


def test_parquet_of_different_specs_is_refused_and_leaves_nothing(
    tmp_path: Path, path: Path
) -> None:
    with serve(Catch) as server, Recorder(path) as recorder:
        for rows in (5, 6):
            settings = {**SETTINGS, "rows": rows}
            with dm_env_rpc_client.make(server.address, settings, record=recorder) as env:
                env.reset()
    with pytest.raises(RecordingError, match=r"episode 2 .*observation\.board"):
        export_parquet(path, tmp_path / "out.parquet")
    assert list(tmp_path.iterdir()) == [path]
    empty = tmp_path / "empty.mcap"
    Recorder(empty).close()
    with pytest.raises(RecordingError, match="no episodes"):
        export_parquet(empty, tmp_path / "out.parquet")


def test_minari_has_the_episodes(path: Path, export_minari: Callable[..., int]) -> None:
    import minari

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
    import minari

    with recorded(path, lambda: Constant(NUMBERS, actions=NUMBERS)) as env:
        env.reset()
        env.step({name: spec.generate_value() for name, spec in env.action_spec().items()})
    assert export_minari(path, "numbers-v0") == 1
    (exported,) = minari.load_dataset("numbers-v0").iterate_episodes()
    (episode,) = read(path).episodes
    for name, values in episode.timesteps.observation.items():
        np.testing.assert_array_equal(exported.observations[name], values)
    assert list(exported.terminations) == [True]
    assert list(exported.rewards) == [1.0]
    path = path.with_name("idle.mcap")
    with recorded(path, lambda: Constant(NUMBERS)) as env:
        env.reset()
        env.step({})
    with pytest.raises(RecordingError, match="has no actions"):
        export_minari(path, "idle-v0")


def test_minari_refuses_what_it_has_no_space_for(
    mixed: Path, export_minari: Callable[..., int]
) -> None:
    with pytest.raises(RecordingError, match="observation 'text' is"):
        export_minari(mixed, "mixed-v0")
