"""Each environment's own infos, as Stable-Baselines3 wants them, whatever those of other rows are.

What they are compared with is a list of the environments' own dicts, with their types, here; in
`tests/adaptors/test_sb3.py` it is Stable-Baselines3's own DummyVecEnv.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client import BatchedEnvironment, EnvironmentsFailedError, make
from dm_env_rpc_client.adaptors.gymnasium.dict_vector_env import DictVectorEnv
from dm_env_rpc_client.adaptors.gymnasium.episode_rows import EpisodeRows
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.environment.many.row_worlds import RowWorlds
from dm_env_rpc_client.recording import replay
from dm_env_rpc_client.server import serve
from tests.adaptors.gymnasium.informing import (
    HOPELESS,
    KINDS,
    ROWS,
    Informing,
    identical,
    informing,
    played,
    rows_alone,
    waiting,
)
from tests.adaptors.sameness import same
from tests.support.interrupts import Interrupt
from tests.support.one_file import one_file

PLACES: dict[str, dict[str, Any]] = {
    "batch": {},
    "streams": {"num_batches": 0},
    "two batches": {"num_batches": 2},
}


@contextlib.contextmanager
def opened(address: str, ends: str = "terminated", **options: Any) -> Iterator[Any]:
    settings = [{"row": row, "ends": ends} for row in range(ROWS)]
    mode = AutoresetMode.SAME_STEP
    with DictVectorEnv(address, ROWS, settings, autoreset_mode=mode, **options) as envs:
        yield envs


def played_there(envs: Any, kind: str, steps: int = 6, seeds: Any = None, **options: Any) -> Any:
    firsts: list[Any] = [{}] * ROWS
    envs.reset_each(seeds or [None] * ROWS, {"kind": kind, **options}, firsts)
    found: list[Any] = [list(firsts)]
    for _ in range(steps):
        infos = envs.step_each(np.zeros(ROWS, np.int64), firsts)[3]
        found.append((infos, list(firsts)))
    return found


def check_all_kinds(envs: Any) -> None:
    wrong = {}
    for kind in KINDS:
        mine, own = played_there(envs, kind), played(kind)
        if not identical(mine, own):
            wrong[kind] = mine, own
    assert wrong == {}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serve(informing) as server:
        yield server.address


@pytest.mark.parametrize("place", PLACES)
def test_infos_are_the_environments_own(address: str, place: str) -> None:
    with opened(address, **PLACES[place]) as envs:
        check_all_kinds(envs)


def test_infos_of_several_processes_are_the_environments_own() -> None:
    with serve(informing, processes=2) as server, opened(server.address) as envs:
        check_all_kinds(envs)


def test_infos_of_the_one_file_server_are_the_environments_own() -> None:
    with one_file("tests.adaptors.gymnasium.informing:informing") as there, opened(there) as envs:
        check_all_kinds(envs)


def test_infos_of_rows_that_wait_in_threads_are_the_environments_own() -> None:
    with serve(waiting) as server, opened(server.address) as envs:
        check_all_kinds(envs)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("ends", ["terminated", "truncated", "both"])
def test_they_say_how_episodes_end(address: str, ends: str, place: str) -> None:
    with opened(address, ends, **PLACES[place]) as envs:
        assert identical(played_there(envs, "one type"), played("one type", ends=ends))


@pytest.mark.parametrize("place", PLACES)
def test_integers_are_integers_in_json(address: str, place: str) -> None:
    with opened(address, **PLACES[place]) as envs:
        first, (infos, _) = played_there(envs, "one type", 1)
        assert json.loads(json.dumps([first, infos])) == [first, infos]


@pytest.mark.parametrize("place", PLACES)
def test_options_and_seeds_arrive_in_the_infos_of_resets(address: str, place: str) -> None:
    options: dict[str, Any] = {
        "kind": "one type",
        "level": [1, 2.5, None],
        "_own": {"a": (1,), "b": np.int64(3)},
    }
    with opened(address, **PLACES[place]) as envs:
        found = played_there(envs, seeds=[7] * ROWS, **options)
        assert identical(found, played("one type", seed=7, options=options))


@pytest.mark.parametrize("place", PLACES)
def test_what_methods_return_is_the_environments_own(place: str) -> None:
    names = ["told", "same_told"]
    with (
        serve(informing, callable_names=names) as server,
        opened(server.address, **PLACES[place]) as envs,
    ):
        wrong = {}
        for kind in KINDS:
            own = rows_alone(kind)
            played_there(envs, kind, 0)
            for name in names:
                expected = [former(getattr(each, name)()) for each in own]
                found = list(envs.call(name))
                if not identical(found, expected):
                    wrong[kind, name] = found, expected
        assert wrong == {}


def former(value: Any) -> Any:
    """A value of a call, or of an option: strings of NumPy are strings."""
    return str(value) if isinstance(value, np.str_) else value


@pytest.mark.parametrize("kind", [*HOPELESS, "no dict"])
def test_an_info_that_cannot_travel_is_the_error_of_its_row(address: str, kind: str) -> None:
    with opened(address) as envs:
        with pytest.raises(EnvironmentsFailedError) as raised:
            played_there(envs, kind)
        assert list(raised.value.failures) == [0]  # Whose reset has the info.
        assert identical(played_there(envs, "one type"), played("one type"))


def test_a_dm_env_client_of_a_batch_does_not_meet_infos(address: str) -> None:
    settings = {"num_envs": ROWS, "rows.row": range(ROWS)}
    for mode in ("NEXT_STEP", "SAME_STEP"):
        with make(address, {**settings, "autoreset_mode": mode}) as env:
            for kind in (*KINDS, *HOPELESS):
                timesteps = [env.reset({"options": json.dumps({"kind": kind})})]
                timesteps += [env.step({"action": np.zeros(ROWS, np.int64)}) for _ in range(5)]
                errors = [str(timestep.observation["row_errors"]) for timestep in timesteps]
                assert errors == [""] * 6, (kind, mode)


@pytest.mark.parametrize("num_batches", [None, 0])
def test_batched_environments_do_not_meet_infos(address: str, num_batches: int | None) -> None:
    for kind in HOPELESS:
        settings = [{"row": row, "kind": kind} for row in range(ROWS)]
        with BatchedEnvironment(address, ROWS, settings, num_batches=num_batches) as envs:
            envs.reset()
            steps = [envs.step({"action": np.zeros(ROWS, np.int64)}) for _ in range(4)]
            assert [step.step_type.tolist() for step in steps][1] == [2, 1, 1]


def test_a_recording_replays_what_was_seen(tmp_path: Path) -> None:
    path = tmp_path / "infos.mcap"
    with serve(informing) as server, opened(server.address, record=path) as envs:
        seen = [played_there(envs, kind) for kind in KINDS]
    with replay(path) as there, opened(there.address) as envs:
        assert identical([played_there(envs, kind) for kind in KINDS], seen)


def vector(mode: AutoresetMode) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    factories = [functools.partial(Informing, row, "not in each row") for row in range(ROWS)]
    return gymnasium.vector.SyncVectorEnv(factories, autoreset_mode=mode)


def test_infos_of_a_vector_environment_are_what_it_made_of_them() -> None:
    mode = AutoresetMode.SAME_STEP
    with (
        serve(functools.partial(vector, mode)) as server,
        DictVectorEnv(server.address, autoreset_mode=mode) as envs,
    ):
        firsts: list[Any] = [{}] * ROWS
        envs.reset_each([None] * ROWS, None, firsts)
        found: list[Any] = [list(firsts)]
        for _ in range(6):
            infos = envs.step_each(np.zeros(ROWS, np.int64), firsts)[3]
            found.append((infos, list(firsts)))
        # An integer is one of NumPy.
        assert same(found, played("not in each row"))


def without_final(count: int = 2) -> Any:
    class WithoutFinal(gymnasium.vector.VectorEnv[Any, Any, Any]):
        """Begins the next episode in each second step, and tells nothing of the last one."""

        metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012  # as in Gymnasium
        num_envs = count
        single_action_space = gymnasium.spaces.Discrete(2)
        single_observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
        steps = 0

        def reset(self, **_: Any) -> Any:
            return np.zeros((count, 1), np.float32), {}

        def step(self, actions: Any) -> Any:
            self.steps += 1
            ended = np.full(count, self.steps % 2 == 0)
            infos = {"_secret": np.arange(count), "number": np.arange(count)}
            return np.zeros((count, 1), np.float32), np.ones(count), ended, ~ended & ended, infos

    return WithoutFinal()


def test_a_vector_environment_may_have_no_final_observations_and_no_masks() -> None:
    with (
        serve(without_final) as server,
        DictVectorEnv(server.address, autoreset_mode=AutoresetMode.SAME_STEP) as envs,
    ):
        firsts: list[Any] = [{}] * 2
        envs.reset_each([None] * 2, None, firsts)
        _, _, dones, infos = envs.step_each(np.zeros(2, np.int64), firsts)
        assert not dones.any()
        assert infos[1] == {"_secret": 1, "number": 1, "TimeLimit.truncated": False}
        _, _, dones, infos = envs.step_each(np.zeros(2, np.int64), firsts)
        assert dones.all()
        assert infos[1] == {"TimeLimit.truncated": False}


@pytest.mark.parametrize("num_batches", [None, 0])
def test_an_interrupt_loses_no_step_without_an_error(address: str, num_batches: int | None) -> None:
    """In front of any line: the next step follows the last one, or is an error."""
    errors = line = 0
    actions = np.zeros(ROWS, np.int64)
    firsts: list[dict[str, Any]] = [{} for _ in range(ROWS)]
    own = DictVectorEnv.step_each, DictVectorEnv._results
    while True:
        line += 1
        with opened(address, num_batches=num_batches) as envs:
            envs.reset_each([None] * ROWS, None, firsts)
            with Interrupt(line, *own, RowWorlds.exchange, EpisodeRows.each_info) as interrupt:
                try:
                    envs.step_each(actions, firsts)
                except KeyboardInterrupt:
                    pass
                else:
                    break
            assert interrupt.left == 0
            try:
                observations, *_ = envs.step_each(actions, firsts)
                assert observations[2].tolist() == [2, 1], f"line {line}"
            except EnvironmentsFailedError:
                errors += 1
    assert line > 15
    assert errors >= line - 6  # But for the lines before the step is sent.


@pytest.mark.parametrize("place", PLACES)
def test_callers_may_change_what_they_were_given(address: str, place: str) -> None:
    with opened(address, **PLACES[place]) as envs:
        for kind in ("lists", "empty", "all empty"):
            found = played_there(envs, kind)
            for infos, firsts in found[1:]:
                for info in (*infos, *firsts):
                    info.clear()
                    info["mine"] = True
            assert identical(played_there(envs, kind), played(kind))


class _Once(gymnasium.Env[Any, Any]):
    """Has an info in its first step alone, and raises where the action is 2."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(3)
    _count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        self._count = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        if action == 2:
            raise OSError("no")
        self._count += 1
        return 0, 0.0, False, False, {"first": 1} if self._count == 1 else {}


@pytest.mark.parametrize("num_batches", [0, 1, 2])
def test_infos_that_nobody_got_since_another_row_failed_are_dropped(num_batches: int) -> None:
    with serve(_Once) as server:
        envs = RemoteVectorEnv(server.address, 4, num_batches=num_batches)
        with contextlib.closing(envs):
            envs.reset(seed=1)
            with pytest.raises(EnvironmentsFailedError, match="no"):
                envs.step([1, 1, 1, 2])
            # Row 3 takes its first step, the others their second one.
            infos = envs.step([1] * 4)[-1]
            assert infos["_first"].tolist() == [False, False, False, True]
