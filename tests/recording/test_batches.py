"""The episodes of a batched world's rows are what each row saw, and a replay serves the batch."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dm_env
import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client import BatchedEnvironment, EnvironmentsFailedError, dm_env_rpc_pb2
from dm_env_rpc_client.errors import RecordingError
from dm_env_rpc_client.protocol.envelopes import EnvironmentResponse
from dm_env_rpc_client.recording import Episode, Scan, episodes, read
from dm_env_rpc_client.server import Catch, Server, serve
from dm_env_rpc_client.tensors.memory_limits import Limits
from tests.cli.commands import invoke
from tests.environment.many.test_batch_worlds import rolls, settings
from tests.recording.sessions import record, recorded
from tests.support.environments import Dice

COUNT = 5
STEPS = 60


class Seen(NamedTuple):
    """What a row saw in a step: as of a TimeStep, and the action that led to it."""

    kind: int
    reward: Any
    discount: Any
    observation: dict[str, Any]
    action: dict[str, Any] | None


@pytest.fixture(scope="module")
def dice() -> Iterator[Server]:
    with serve(Dice) as running:
        yield running


def play_batch(address: str, **options: Any) -> list[dm_env.TimeStep]:
    with BatchedEnvironment(address, COUNT, settings, nested_tensors=False, **options) as env:
        return [env.reset(), *(env.step(rolls(COUNT, step)) for step in range(STEPS))]


def by_row(path: Path, count: int) -> list[list[Episode]]:
    """The episodes of each row of a recording."""
    found = read(path).episodes
    return [[each for each in found if each.row == row] for row in range(count)]


def kinds_of(found: list[Episode]) -> list[int]:
    return [int(step.step_type) for each in found for step in each.flat_timesteps]


def of_row(row: int, values: dict[str, Any]) -> dict[str, Any]:
    return {name: array[row] for name, array in values.items()}


def episodes_of(live: list[dm_env.TimeStep], actions: list[Any], row: int) -> list[list[Seen]]:
    """The episodes of a row: FIRST to LAST, or to the end."""
    found: list[list[Seen]] = []
    for timestep, action in zip(live, [None, *actions], strict=True):
        kind = int(timestep.step_type[row])
        observation = of_row(row, timestep.observation)
        if kind == dm_env.StepType.FIRST:
            found.append([Seen(kind, None, None, observation, None)])
        else:
            reward, discount = timestep.reward[row], timestep.discount[row]
            found[-1].append(Seen(kind, reward, discount, observation, of_row(row, action)))
    return found


def assert_episode(found: Episode, expected: list[Seen]) -> None:
    assert len(found) == len(expected)
    for step, action, seen in zip(found.flat_timesteps, found.flat_actions, expected, strict=True):
        assert tuple(step[:3]) == (seen.kind, seen.reward, seen.discount)
        np.testing.assert_equal(step.observation, seen.observation)
        np.testing.assert_equal(action, seen.action or {})
    has_terminated = expected[-1].kind == dm_env.StepType.LAST and not expected[-1].discount
    assert found.end == ("terminated" if has_terminated else "interrupted")


@pytest.mark.parametrize("num_batches", [None, 2], ids=["batch", "batches"])
def test_the_episodes_of_rows_are_what_each_row_saw(
    dice: Server, path: Path, num_batches: int | None
) -> None:
    live = play_batch(dice.address, record=path, num_batches=num_batches)
    actions = []
    for step in range(STEPS):
        roll = rolls(COUNT, step)
        actions.append(
            {"bet": roll["bet"], "hand.push": roll["hand"]["push"], "word": roll["word"]}
        )
    run = read(path)
    # Without batches there would be one for each environment.
    assert (len(run.connections), run.is_complete) == (num_batches or 1, True)
    by_word: dict[str, list[Episode]] = defaultdict(list)
    for episode in run.episodes:
        by_word[episode.flat_timesteps[0].observation["words"][0]].append(episode)
    assert len({(each[0].world_name, each[0].row) for each in by_word.values()}) == COUNT
    lengths = set()
    for row in range(COUNT):
        expected = episodes_of(live, actions, row)
        assert len(expected) > 10
        lengths.add(tuple(map(len, expected)))
        for found, seen in zip(by_word[f"row{row}"], expected, strict=True):
            assert_episode(found, seen)
    assert len(lengths) == COUNT, "rows end at different times"
    assert [each.number for each in run.episodes] == list(range(1, len(run.episodes) + 1))


def test_rows_have_the_specs_and_the_form_of_an_environment_alone(dice: Server, path: Path) -> None:
    single = path.with_name("single.mcap")
    play_batch(dice.address, record=path)
    play_batch(dice.address, record=single, num_batches=0)
    of_batch, of_streams = read(path).episodes[0], read(single).episodes[0]
    assert (of_batch.row, of_streams.row) == (int(of_batch.row or 0), None)
    assert of_batch.action_specs == of_streams.action_specs
    # A batch always sends its discount.
    assert {
        name: spec for name, spec in of_batch.observation_specs.items() if name != "discount"
    } == of_streams.observation_specs
    assert "of row" in repr(of_batch)
    assert "row" not in repr(of_streams)
    stacked = of_batch.timesteps
    assert stacked.observation["dice"].shape == (len(of_batch), 2, 3)
    assert stacked.observation["table"]["total"].dtype == np.float64
    assert of_batch.actions["hand"]["push"].shape == (len(of_batch) - 1, 2)
    for step in of_batch.flat_timesteps:
        assert step.observation["dice"].base is None, "arrays of its own"


def test_a_row_that_fails_has_no_time_step(path: Path) -> None:
    def failing(index: int) -> dict[str, Any]:
        return {**settings(index), "fails_at": 3 if index == 1 else 0}

    failures = []
    with serve(Dice) as server, BatchedEnvironment(server.address, 2, failing, record=path) as env:
        env.reset()
        for step in range(12):
            try:
                env.step(rolls(2, step))
            except EnvironmentsFailedError as error:
                failures.append(list(error.failures))
    assert failures == [[1]]
    assert [sum(map(len, row)) for row in by_row(path, 2)] == [13, 12]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_every_autoreset_mode_of_a_vector_environment(path: Path, mode: AutoresetMode) -> None:
    def walks(num_envs: int) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        return gymnasium.make_vec(
            "CartPole-v1", num_envs, vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": mode},
        )  # fmt: skip

    live: list[dm_env.TimeStep] = []
    with recorded(path, walks, {"num_envs": 3}) as env:
        live.append(env.reset({"seed": 2}))
        for step in range(60):
            live.append(env.step({"action": np.array([1, step % 2, 0])}))
            ended = live[-1].observation["step_type"] == dm_env.StepType.LAST
            if mode is AutoresetMode.DISABLED and ended.any():
                live.append(env.reset({"reset_mask": ended}))
    for row, found in enumerate(by_row(path, 3)):
        assert len(found) > 2 or row == 1
        for each in found:
            kinds = kinds_of([each])
            assert kinds[0] == 0
            assert set(kinds[1:-1]) <= {1}
            assert each.end == ("terminated" if kinds[-1] == 2 else "interrupted")
            assert each.episode_return == len(each) - 1
        # Each reward that was seen is in one episode.
        total = sum(float(step.reward[row]) for step in live if step.reward is not None)
        assert sum(each.episode_return for each in found) == total
        if mode is AutoresetMode.SAME_STEP:
            for before, after in itertools.pairwise(found):
                np.testing.assert_equal(
                    after.flat_timesteps[0].observation, before.flat_timesteps[-1].observation
                )
                assert after.nanoseconds[0] == before.nanoseconds[-1]
                assert after.flat_timesteps[0].reward is None


def changed_answers(path: Path, out: Path, change: Callable[[Any], None]) -> None:
    """Writes a recording whose answers to steps are other ones."""
    requests: list[bytes] = []
    exchanges = []
    for entry in Scan(path):
        if entry.is_request:
            requests.append(entry.message)
        else:
            answer = EnvironmentResponse.FromString(entry.message)
            if answer.HasField("step"):
                change(answer.step)
            exchanges.append((requests.pop(0), answer.SerializeToString()))
    record(out, *exchanges)


def uid_of(path: Path, name: str) -> int:
    for entry in Scan(path):
        if not entry.is_request:
            answer = EnvironmentResponse.FromString(entry.message)
            for uid, spec in answer.join_world.specs.observations.items():
                if spec.name == name:
                    return int(uid)
    raise AssertionError(name)


@pytest.fixture
def catches(path: Path) -> Path:
    with recorded(path, Catch, {"num_envs": 2, "rows.seed": [1, 2]}) as env:
        env.unroll({"paddle": np.ones((5, 2), int)})
    return path


def test_what_breaks_the_rules_of_batches_is_named(catches: Path, tmp_path: Path) -> None:
    kinds, errors = (uid_of(catches, name) for name in ("step_type", "row_errors"))

    def broken(name: str, change: Callable[[Any], None]) -> str:
        out = tmp_path / f"{name}.mcap"
        changed_answers(catches, out, change)
        with pytest.raises(RecordingError) as caught:
            list(episodes(out))
        return str(caught.value)

    def set_kinds(step: Any, content: bytes) -> None:
        step.observations[kinds].uint8s.array = content

    def leave_out(step: Any) -> None:
        if step.observations[kinds].uint8s.array != b"\0\0":
            del step.observations[kinds]

    text = broken("seven", lambda step: set_kinds(step, b"\0\7"))
    assert "the step of row 1 has the type 7" in text
    assert "the step of row 0 is MID" in broken("mid", lambda step: set_kinds(step, b"\1\0"))
    assert "does not have the observation 'step_type'" in broken("without", leave_out)

    def set_errors(step: Any) -> None:
        step.observations[errors].strings.array[:] = ["[" * 1000]

    assert "row_errors" in broken("errors", set_errors)


def test_rows_that_few_bytes_ask_for_are_refused(tmp_path: Path) -> None:
    count = 10_000_000
    request = dm_env_rpc_pb2.EnvironmentRequest
    specs = dm_env_rpc_pb2.ActionObservationSpecs()
    step = dm_env_rpc_pb2.StepResponse(state=dm_env_rpc_pb2.RUNNING)
    for uid, name in enumerate(("step_type", "reward"), 1):
        specs.observations[uid].name = name
        specs.observations[uid].dtype = dm_env_rpc_pb2.UINT8
        specs.observations[uid].shape.append(count)
        step.observations[uid].uint8s.array = b"\0"
        step.observations[uid].shape.append(count)
    exchanges = [
        (request(join_world={"world_name": "w"}), EnvironmentResponse(join_world={"specs": specs})),
        (request(step={"requested_observations": [1, 2]}), EnvironmentResponse(step=step)),
    ]
    out = tmp_path / "bomb.mcap"
    record(out, *((q.SerializeToString(), a.SerializeToString()) for q, a in exchanges))
    with pytest.raises(RecordingError, match="chunk_bytes"):
        list(episodes(out, Limits(chunk_bytes=64 << 20)))


def test_what_is_kept_is_bounded_by_the_rows_that_run(path: Path) -> None:
    # A chunk ends with the record that makes it longer than 1 MiB.
    limits = Limits(chunk_bytes=(1 << 20) + (1 << 16))
    rows = {"num_envs": 16, "rows.seed": list(range(16)), "columns": 4}
    with recorded(path, Catch, rows) as env:
        env.unroll({"paddle": np.ones((400, 16), int)})
    assert sum(len(each) for each in episodes(path, limits)) == 16 * 400
    with pytest.raises(RecordingError, match="chunk_bytes"):
        read(path, limits)


def test_inspect_says_which_row(dice: Server, path: Path) -> None:
    play_batch(dice.address, record=path)
    shown = json.loads(invoke("inspect", str(path), "--json").stdout)
    assert [each["row"] for each in shown["episodes"]] == [e.row for e in read(path).episodes]
    assert " row " in invoke("inspect", str(path)).stdout
