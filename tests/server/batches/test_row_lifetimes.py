"""Environments of rows are made and closed once each, also when a reset or a constructor fails."""

from __future__ import annotations

from typing import Any, ClassVar

import dm_env
import gymnasium
import numpy as np
import pytest
from dm_env import specs
from gymnasium import spaces

from dm_env_rpc_client import DmEnvAdaptor, DmEnvRpcError, make
from dm_env_rpc_client.protocol.batches import ROW_ERRORS
from dm_env_rpc_client.server import Server, serve
from tests.server.structures.hosted import Structured
from tests.support.scripted import settles
from tests.support.serving import serving

ROWS = 4


class Valued(Structured):
    """Observes its setting; closing or making one with certain values fails.

    Args:
      value: the setting.
      fails_to_close: the value of those that raise in `close`.
      fails_to_make: the same for the constructor.
      size: of the observation.
    """

    made: ClassVar[list[Valued]] = []

    def __init__(
        self, value: int = 0, fails_to_close: int = -1, fails_to_make: int = -1, size: int = 1
    ):
        if value == fails_to_make:
            raise OSError(f"no device number {value}")
        spec, action = specs.Array((size,), np.int64, "seen"), specs.DiscreteArray(2, name="action")
        super().__init__(spec, action, observe=lambda step: np.full(size, value))
        self._value = value
        self._fails_to_close = fails_to_close
        self.closed = 0
        self.made.append(self)

    def step(self, action: Any) -> dm_env.TimeStep:
        assert self.episode >= 0, "it has never begun"
        return super().step(action)

    def close(self) -> None:
        self.closed += 1
        if self._value == self._fails_to_close:
            raise OSError(f"device number {self._value} is stuck")


server = serving(Valued)

ACTION = {"action": np.zeros(ROWS, np.int32)}

NUMBERED = {"num_envs": ROWS, "rows.value": [0, 1, 2, 3]}


@pytest.fixture(autouse=True)
def _none_made() -> None:
    Valued.made.clear()


def seen(timestep: dm_env.TimeStep) -> list[int]:
    assert timestep.observation[ROW_ERRORS] == ""
    values = timestep.observation["observation"]
    return [int(row[0]) for row in values]


def closed() -> list[int]:
    return [each.closed for each in Valued.made]


@pytest.mark.parametrize("stuck", [0, 1, 3])
@pytest.mark.parametrize("size", [1, 2], ids=["the same specs", "other specs"])
def test_a_reset_whose_former_environments_do_not_close_is_in_force(
    server: Server, stuck: int, size: int
) -> None:
    """As with a single environment, the client gets the error."""
    env = make(server.address, {**NUMBERED, "fails_to_close": stuck})
    assert seen(env.reset()) == [0, 1, 2, 3]
    text = f"OSError: device number {stuck} is stuck"
    with pytest.raises(DmEnvRpcError, match=text):
        env.reset({"value": 77, "size": size, "rows.value": [77, 78, 79, 80]})
    assert closed() == [1] * ROWS + [0] * ROWS
    # No new environment is stepped that has never begun.
    with pytest.raises(DmEnvRpcError, match="FAILED_PRECONDITION"):
        env.step(ACTION)
    # Specs that have changed are told with the next answer to a Reset.
    assert seen(env.reset({"reset_mask": np.ones(ROWS, np.bool_)})) == [77, 78, 79, 80]
    assert env.observation_spec()["observation"].shape == (ROWS, size)
    assert seen(env.step(ACTION)) == [77, 78, 79, 80]
    env.close()
    assert settles(lambda: closed() == [1] * 2 * ROWS)


@pytest.mark.parametrize("failing", [1, 3])
def test_environments_are_closed_when_a_later_one_cannot_be_made(
    server: Server, failing: int
) -> None:
    errors = len(server.errors)
    with pytest.raises(DmEnvRpcError, match=f"OSError: no device number {failing}"):
        make(server.address, {**NUMBERED, "fails_to_make": failing})
    assert closed() == [1] * failing
    # One that does not close hides neither the error nor the others.
    with pytest.raises(DmEnvRpcError, match=f"OSError: no device number {failing}"):
        make(server.address, {**NUMBERED, "fails_to_make": failing, "fails_to_close": 0})
    assert closed() == [1] * 2 * failing
    assert len(server.errors) >= errors + 2


@pytest.mark.parametrize("stuck", [-1, 77])
def test_a_reset_in_which_one_cannot_be_made_changes_no_row(server: Server, stuck: int) -> None:
    with make(server.address, {**NUMBERED, "fails_to_close": stuck, "fails_to_make": 79}) as env:
        env.reset()
        with pytest.raises(DmEnvRpcError, match="no device number 79"):
            env.reset({"rows.value": [77, 78, 79, 80]})
        assert closed() == [0] * ROWS + [1, 1]
        with pytest.raises(
            DmEnvRpcError, match="row 3 of the batch has a different observation_spec"
        ):
            env.reset({"rows.size": [1, 1, 1, 2]})
        assert closed() == [0] * ROWS + [1, 1] + [1] * ROWS
        assert seen(env.step(ACTION)) == [0, 1, 2, 3]
        assert seen(env.reset()) == [0, 1, 2, 3]


class Seeded(gymnasium.Env[Any, Any]):
    """Observes the seed and the option `add` of its last reset."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-1000, 1000, (2,), np.int64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self._seen = np.array([-1 if seed is None else seed, (options or {}).get("add", -1)])
        return self._seen, {"seed": seed}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        return self._seen, 0.0, False, False, {}


def observed(env: DmEnvAdaptor, settings: dict[str, Any]) -> list[list[int]]:
    values: list[list[int]] = env.reset(settings).observation["observation"].tolist()
    return values


def test_settings_that_a_row_refuses_are_in_force_in_no_row() -> None:
    """Also the seeds and options of rows before it, which take them themselves."""
    with serve(Seeded) as server, make(server.address, {"num_envs": 2}) as env:
        assert observed(env, {"rows.seed": [5, 6]}) == [[5, -1], [6, -1]]
        with pytest.raises(DmEnvRpcError, match="setting 'options'"):
            env.reset({"rows.seed": [7, 8], "rows.options": ['{"add": 1}', "no JSON"]})
        assert observed(env, {}) == [[-1, -1]] * 2
        # The observations of rows with infos and of rows without are different.
        with pytest.raises(DmEnvRpcError, match="a different observation_spec"):
            env.reset({"reset_mask": [False, True], "infos": True})
        assert observed(env, {"rows.seed": [9, 9]}) == [[9, -1]] * 2
