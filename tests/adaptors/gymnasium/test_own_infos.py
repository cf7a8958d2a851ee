"""Each environment's own infos, as Stable-Baselines3 wants them: what the table cannot tell.

That infos are the environments' own, by every way, tells the table of `tests/travelling`.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator
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
from dm_env_rpc_client.server import serve
from tests.support.interrupts import Interrupt
from tests.travelling.environments.usual import Usual

SAME = AutoresetMode.SAME_STEP
ROWS = 3


class Unshowable:
    """An object that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("nobody may see this")


HOPELESS: dict[str, Any] = {
    "an object that cannot be shown": {"it": Unshowable()},
    "an integer of too many digits": {"it": 10**5000},
}


class Hopeless(Usual):
    """The infos of a row cannot travel, where an option of the reset or an argument says so."""

    def __init__(self, row: int = 0, kind: str = ""):
        super().__init__(row)
        self._kind = kind

    def inform(self) -> Any:
        kind = (self.was_given["options"] or {}).get("kind", self._kind)
        if self.row != 1 or not kind:
            return {"count": self.count}
        return HOPELESS.get(kind, [1])


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serve(Hopeless) as server:
        yield server.address


@contextlib.contextmanager
def opened(address: str, **options: Any) -> Iterator[DictVectorEnv]:
    settings = [{"row": row} for row in range(ROWS)]
    with DictVectorEnv(address, ROWS, settings, autoreset_mode=SAME, **options) as envs:
        yield envs


@pytest.mark.parametrize("kind", [*HOPELESS, "no dict"])
def test_an_info_that_cannot_travel_is_the_error_of_its_row(address: str, kind: str) -> None:
    firsts: list[dict[str, Any]] = [{}] * ROWS
    with opened(address) as envs:
        with pytest.raises(EnvironmentsFailedError) as raised:
            envs.reset_each([None] * ROWS, {"kind": kind}, firsts)
        assert list(raised.value.failures) == [1]
        envs.reset_each([None] * ROWS, {}, firsts)
        assert firsts == [{"count": 100 + 10 * row} for row in range(ROWS)]


@pytest.mark.parametrize("kind", HOPELESS)
def test_clients_of_dm_env_do_not_meet_infos(address: str, kind: str) -> None:
    settings: Any = {"num_envs": ROWS, "rows.row": range(ROWS)}
    actions = {"action": np.zeros(ROWS, np.int64)}
    for mode in ("NEXT_STEP", "SAME_STEP"):
        with make(address, {**settings, "autoreset_mode": mode}) as env:
            steps = [env.reset({"options": json.dumps({"kind": kind})}), env.step(actions)]
            assert [str(step.observation["row_errors"]) for step in steps] == ["", ""]
    settings = [{"row": row, "kind": kind} for row in range(ROWS)]
    for num_batches in (None, 0):
        with BatchedEnvironment(address, ROWS, settings, num_batches=num_batches) as envs:
            envs.reset()
            assert envs.step(actions).step_type.tolist() == [1] * ROWS


def test_infos_of_a_vector_environment_are_those_of_its_rows() -> None:
    vector = functools.partial(
        gymnasium.vector.SyncVectorEnv,
        [functools.partial(Usual, row) for row in range(ROWS)],
        autoreset_mode=SAME,
    )
    with serve(vector) as server, DictVectorEnv(server.address, autoreset_mode=SAME) as envs:
        firsts: list[Any] = [{}] * ROWS
        envs.reset_each([None] * ROWS, None, firsts)
        assert firsts == [{"count": 10 * row} for row in range(ROWS)]
        steps = [envs.step_each(np.zeros(ROWS, np.int64), firsts)[3] for _ in range(3)]
        for count, infos in enumerate(steps, 1):
            assert [info["count"] for info in infos] == [10 * row + count for row in range(ROWS)]
        assert [info["terminal_observation"][0] for info in steps[-1]] == [3, 13, 23]
        assert firsts == [{"count": 100 + 10 * row} for row in range(ROWS)]


class WithoutFinal(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Begins the next episode in each second step, and tells nothing of the last one."""

    metadata = {"autoreset_mode": SAME}  # noqa: RUF012  # as in Gymnasium
    num_envs = 2
    single_action_space = gymnasium.spaces.Discrete(2)
    single_observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
    steps = 0

    def reset(self, **_: Any) -> Any:
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions: Any) -> Any:
        self.steps += 1
        ended = np.full(2, self.steps % 2 == 0)
        infos = {"_secret": np.arange(2), "number": np.arange(2)}
        return np.zeros((2, 1), np.float32), np.ones(2), ended, ~ended & ended, infos


def test_a_vector_environment_may_have_no_final_observations_and_no_masks() -> None:
    with serve(WithoutFinal) as server, DictVectorEnv(server.address, autoreset_mode=SAME) as envs:
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
                assert observations[2].tolist() == [21, -21], f"line {line}"
            except EnvironmentsFailedError:
                errors += 1
    assert line > 15
    assert errors >= line - 6  # But for the lines before the step is sent.


class Once(Usual):
    """Has an info in its first step alone, and raises where the action is 2."""

    def step(self, action: Any) -> Any:
        if action == 2:
            raise OSError("no")
        return super().step(action)

    def inform(self) -> Any:
        return {"first": 1} if self.steps == 1 else {}


@pytest.mark.parametrize("num_batches", [0, 1, 2])
def test_infos_that_nobody_got_since_another_row_failed_are_dropped(num_batches: int) -> None:
    with (
        serve(functools.partial(Once, 0)) as server,
        RemoteVectorEnv(server.address, 4, num_batches=num_batches) as envs,
    ):
        envs.reset(seed=1)
        with pytest.raises(EnvironmentsFailedError, match="no"):
            envs.step([1, 1, 1, 2])
        # Row 3 takes its first step, the others their second one.
        assert envs.step([1] * 4)[-1]["_first"].tolist() == [False, False, False, True]
