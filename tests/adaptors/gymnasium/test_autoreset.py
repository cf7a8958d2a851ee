"""Rows that end at different times, in every autoreset mode, are those of SyncVectorEnv."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dm_env_rpc_client import BatchedEnvironment, DmEnvRpcError, make
from dm_env_rpc_client.adaptors.gymnasium import make_remote
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.errors import EnvironmentsFailedError
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.protocol.batches import STEP_TYPE, WORLD_AUTORESET_MODE
from dm_env_rpc_client.server import Server, serve
from tests.adaptors.gymnasium.known import cart_pole, cart_poles
from tests.adaptors.gymnasium.proxied import Mirror
from tests.adaptors.sameness import same
from tests.mistakes.doors import Mistake
from tests.support.environments import Dice
from tests.support.serving import serving
from tests.travelling.environments.usual import Usual
from tests.travelling.told import kept

NUM_ENVS = 5
STEPS = 60


class Uneven(Usual):
    """Ends after 2, 3, 4 ... steps: terminated, truncated, or both."""

    observation_space = gymnasium.spaces.Box(-9999, 9999, (2,), np.float64)

    def ends(self) -> tuple[bool, bool]:
        is_last = self.steps == 2 + self.row
        return is_last and self.row % 3 != 1, is_last and self.row % 3 != 0

    def inform(self) -> Any:
        some = {"nested": {"even": True, "text": "x"}} if self.steps % 2 == 0 else {}
        return {"count": self.count, "options": self.was_given["options"] is None, **some}


def mirror(kind: str, row: int) -> Mirror:
    return Mirror(kind, length=2 + row, ends=("terminated", "truncated", "both")[row % 3])


server = serving(
    {"Dice": Dice, "CartPole": cart_pole, "Uneven": Uneven, "Mirror": mirror}, checks_errors=True
)

LOCAL: dict[str, Callable[[Server, dict[str, Any]], gymnasium.Env[Any, Any]]] = {
    "Dice": lambda server, given: make_remote(server.address, {"environment": "Dice", **given}),
    "CartPole": lambda server, given: cart_pole(**given),
    "Uneven": lambda server, given: Uneven(**given),
    "Mirror": lambda server, given: mirror(**given),
}


def settings_of(name: str, row: int, kind: str) -> dict[str, Any]:
    if name == "Mirror":
        return {"kind": kind, "row": row}
    return {"Dice": {"seed": row}, "Uneven": {"row": row}}.get(name, {})


KINDS = ["box", "discrete", "text", "tuple", "dict with difficult keys", "one of", "graph"]

CASES = [
    *((name, mode, "") for name in ("Dice", "CartPole", "Uneven") for mode in AutoresetMode),
    *(("Mirror", AutoresetMode.SAME_STEP, kind) for kind in KINDS),
]


@pytest.mark.parametrize("num_batches", [1, 0, 2])
@pytest.mark.parametrize(("name", "mode", "kind"), CASES)
def test_every_step_is_that_of_gymnasiums_own(
    server: Server, name: str, mode: AutoresetMode, kind: str, num_batches: int
) -> None:
    settings = [settings_of(name, row, kind) for row in range(NUM_ENVS)]
    expected = SyncVectorEnv(
        [functools.partial(LOCAL[name], server, each) for each in settings], autoreset_mode=mode
    )
    named = [{"environment": name, **each} for each in settings]
    options: dict[str, Any] = {"autoreset_mode": mode, "num_batches": num_batches}
    found = RemoteVectorEnv(server.address, NUM_ENVS, named, **options)
    with contextlib.closing(found), contextlib.closing(expected):
        assert found.metadata["autoreset_mode"] is found.autoreset_mode is mode
        assert found.single_observation_space == expected.single_observation_space
        assert found.single_action_space == expected.single_action_space
        assert found.observation_space == expected.observation_space
        assert found.action_space == expected.action_space
        assert same(kept(found.reset(seed=7)), expected.reset(seed=7))
        expected.action_space.seed(0)
        ends = 0
        for step in range(STEPS if name != "Mirror" else 12):
            actions = expected.action_space.sample()
            mine, theirs = found.step(actions), expected.step(actions)
            assert mine[0] in found.observation_space
            # What a caller does with its arrays changes no row, then or later.
            assert same(kept(mine), theirs)
            ended = theirs[2] | theirs[3]
            ends += int(ended.sum())
            if mode is AutoresetMode.DISABLED and ended.any():
                seeds = [None if step % 2 else step + index for index in range(NUM_ENVS)]
                again = kept(found.reset(seed=seeds, options={"reset_mask": ended}))
                assert same(again, expected.reset(seed=seeds, options={"reset_mask": ended.copy()}))
        assert ends > NUM_ENVS
        assert same(found.reset(), expected.reset())


@pytest.mark.parametrize("num_batches", [1, 0, 2])
def test_arrays_that_stay_are_the_same_ones(server: Server, num_batches: int) -> None:
    settings = [{"environment": "Uneven", "row": row} for row in (3, 4)]
    with RemoteVectorEnv(server.address, 2, settings, copy=False, num_batches=num_batches) as envs:
        first, _ = envs.reset()
        assert envs.step(np.zeros(2, np.int64))[0] is first
        assert envs.reset(options={"reset_mask": np.array([True, False])})[0] is first
        assert first.tolist() == [[130.0, -130.0], [41.0, -41.0]]


ROWS = 3


class Simulator(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Begins the next episode of a row in the step that ends one; keeps the actions that it gets.

    Args:
      num_envs: the number of rows.
      observes: what a step observes, in place of the steps of each row.
      rewards: its rewards, in place of ones.
      flags: its terminations, in place of its own.
    """

    taken: ClassVar[list[Any]] = []

    def __init__(
        self, num_envs: int = ROWS, observes: Any = None, rewards: Any = None, flags: Any = None
    ):
        self.num_envs = num_envs
        self.single_action_space = spaces.Box(-1, 1, (), np.float32)
        self.action_space = spaces.Box(-1, 1, (num_envs,), np.float32)
        self.single_observation_space = spaces.Box(-9, 9, (1,), np.float32)
        self.observation_space = spaces.Box(-9, 9, (num_envs, 1), np.float32)
        self._odd = observes, rewards, flags
        self._lengths = 2 + np.arange(num_envs) % 3

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._steps = np.zeros(self.num_envs, np.int64)
        return self._seen(), {}

    def step(self, actions: Any) -> Any:
        self.taken.append(np.array(actions))
        self._steps += 1
        ended = self._steps == self._lengths
        self._steps[ended] = 0
        observes, rewards, flags = self._odd
        return (
            self._seen() if observes is None else observes,
            np.ones(self.num_envs) if rewards is None else rewards,
            ended if flags is None else flags,
            np.zeros(self.num_envs, bool),
            {},
        )

    def _seen(self) -> Any:
        return self._steps.astype(np.float32)[:, np.newaxis]


class Unregistered(Simulator):
    """As Isaac Lab's environments: of a class of their own, with another `metadata`."""

    metadata = {"render_modes": []}  # noqa: RUF012


@pytest.fixture(autouse=True)
def _none_taken() -> None:
    Simulator.taken.clear()


ADVICE = "Pass the mode to serve: autoreset_mode='SAME_STEP' if the step that ends an episode"

MISTAKES = {
    "a factory": Mistake(
        lambda: _open(Simulator), "Simulator", "no 'autoreset", ADVICE, EnvironmentsFailedError,
    ),
    "a factory, for make": Mistake(
        lambda: _make(Unregistered), "Unregistered", "no 'autoreset_mode'", ADVICE, DmEnvRpcError,
    ),
    "an instance": Mistake(lambda: serve(Simulator()), "Simulator", "no 'autoreset_mode'", ADVICE),
    "an instance of several": Mistake(
        lambda: serve({"a": cart_poles, "b": Simulator()}), "Simulator", "no 'autoreset_mode'",
        ADVICE,
    ),
}  # fmt: skip


def _open(factory: Any) -> None:
    with serve(factory) as server:
        RemoteVectorEnv(server.address, ROWS)


def _make(factory: Any) -> None:
    with serve(factory) as server:
        make(server.address)


@pytest.mark.parametrize("name", MISTAKES)
def test_the_mode_is_asked_for(name: str) -> None:
    MISTAKES[name].check()


def test_known_modes_need_not_be_told() -> None:
    for given in (None, "SAME_STEP"):  # That which is declared prevails.
        with (
            serve(cart_poles, autoreset_mode=given) as server,
            RemoteVectorEnv(server.address, 2) as envs,
        ):
            assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    with serve(cart_poles(2)) as server, RemoteVectorEnv(server.address) as envs:
        assert envs.num_envs == 2
    # What EnvPool's classes look like from outside.
    pool = type("CartPoleEnv", (Simulator,), {"__module__": "envpool.python.gymnasium_envpool"})
    with serve(pool) as server, RemoteVectorEnv(server.address, 2) as envs:
        assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP


WAYS: dict[str, Any] = {
    "RemoteVectorEnv": lambda address: RemoteVectorEnv(address, ROWS),
    "BatchedEnvironment": lambda address: BatchedEnvironment(address, ROWS),
    "make": lambda address: make(address, {"num_envs": ROWS}),
}


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP"])
@pytest.mark.parametrize("way", WAYS)
def test_actions_are_never_replaced(way: str, mode: str) -> None:
    with serve(Simulator, autoreset_mode=mode) as server, WAYS[way](server.address) as env:
        env.reset()
        for _ in range(9):
            ones = np.ones(ROWS, np.float32)
            env.step(ones if way == "RemoteVectorEnv" else {"action": ones})
    assert np.concatenate(Simulator.taken).tolist() == [1.0] * 9 * ROWS


def test_the_mode_is_a_property_and_decides_about_step_types() -> None:
    expected = {
        "SAME_STEP": [[1, 1, 1], [2, 1, 1], [1, 2, 1], [2, 1, 2]],
        "NEXT_STEP": [[1, 1, 1], [2, 1, 1], [0, 2, 1], [2, 0, 2]],
        "DISABLED": [[1, 1, 1], [2, 1, 1], [1, 2, 1], [2, 1, 2]],
    }
    for mode, kinds in expected.items():
        with serve(Simulator, autoreset_mode=mode) as server, make(server.address) as env:
            assert PropertiesExtension(env.connection)[WORLD_AUTORESET_MODE] == mode
            env.reset()
            found = [env.step({"action": np.ones(ROWS, np.float32)}) for _ in range(4)]
            assert [each.observation[STEP_TYPE].tolist() for each in found] == kinds


ODD: dict[str, tuple[dict[str, Any], str]] = {
    "complex rewards": ({"rewards": np.full(ROWS, 1j)}, "rewards that are an array complex"),
    "rewards as texts": ({"rewards": ["0.5"] * ROWS}, "returned rewards that are a list"),
    "a reward for all": ({"rewards": 1.0}, "returned rewards that are a float"),
    "a reward too few": ({"rewards": np.ones(2)}, "an array float64 [2]; expected an array of 3"),
    "no rewards": ({"rewards": [None] * ROWS}, "returned rewards that are a list"),
    "rewards of agents": ({"rewards": np.ones((ROWS, 2))}, "an array float64 [3, 2]; expected"),
    "rewards by agent": ({"rewards": np.ones((2, ROWS))}, "as a ParallelEnv of PettingZoo"),
    "flags as texts": ({"flags": ["False"] * ROWS}, "returned terminations that are a list"),
    "a flag for all": ({"flags": False}, "returned terminations that are a bool"),
    "a fraction": ({"observes": np.full((ROWS, 1), 1e300)}, "1e+300, which float32 cannot hold"),
    "too few rows": ({"observes": np.zeros((2, 1), np.float32)}, "expected 3 rows"),
    "other rows": ({"observes": np.zeros((ROWS, 2), np.float32)}, "has shape [3, 2]; expected"),
    "masked": ({"observes": np.ma.array(np.zeros((ROWS, 1)), mask=True)}, "masked elements"),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_values_of_a_vector_environment_are_not_cast(name: str) -> None:
    arguments, text = ODD[name]

    def odd() -> Any:
        return Simulator(**arguments)

    with serve(odd, autoreset_mode="SAME_STEP") as server:
        with make(server.address) as env:
            env.reset()
            with pytest.raises(DmEnvRpcError, match="the environment failed in a step") as caught:
                env.step({"action": np.ones(ROWS, np.float32)})
        assert text in str(caught.value)
        assert len(server.errors) == 1  # It is not the client's fault.


def test_numbers_of_a_vector_environment_may_be_of_other_dtypes() -> None:
    for rewards, flags in (
        (np.arange(ROWS, dtype=np.int32), np.array([0, 1, 0])),
        ([0, 1, 2], [False, True, False]),
        (np.arange(ROWS, dtype=np.float16), np.array([0.0, 1.0, 0.0])),
        (np.array([1 << 60] * ROWS) + np.arange(ROWS), np.array([False, True, False])),
        (np.array([0, 1.5, 2], object), np.array([False, True, False], object)),
    ):

        def odd(rewards: Any = rewards, flags: Any = flags) -> Any:
            return Simulator(rewards=rewards, flags=flags)

        with serve(odd, autoreset_mode="SAME_STEP") as server, make(server.address) as env:
            env.reset()
            timestep = env.step({"action": np.ones(ROWS, np.float32)})
            assert timestep.reward.tolist() == np.asarray(rewards, np.float64).tolist()
            assert timestep.observation[STEP_TYPE].tolist() == [1, 2, 1]
            assert timestep.discount.tolist() == [1.0, 0.0, 1.0]
