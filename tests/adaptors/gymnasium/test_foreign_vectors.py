"""Vector environments of other projects through the wire: the same as in this process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import dm_env
import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dm_env_rpc_client import (
    BatchedEnvironment,
    DmEnvRpcError,
    EnvironmentsFailedError,
    SpecError,
    make,
)
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.protocol.batches import STEP_TYPE
from dm_env_rpc_client.server import serve
from tests.adaptors.gymnasium.known import cart_poles
from tests.adaptors.gymnasium.masked import Masked
from tests.adaptors.sameness import same

ROWS = 3

# EnvPool describes its spaces in float64.
pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered:UserWarning")


class Kind(NamedTuple):
    """How a vector environment is made, and what it takes.

    Attributes:
      make: makes it; its arguments are settings of a CreateWorld.
      settings: those that the test uses.
      seeds: whether its `reset` takes seeds.
      least_ends: how many episodes end in 70 steps at least, in all rows.
    """

    make: Callable[..., Any]
    settings: Mapping[str, Any] = {}  # it is not changed
    seeds: bool = True
    least_ends: int = 5


def gymnasiums(name: str, mode: str, num_envs: int = 2, autoreset: str = "NextStep") -> Any:
    own: dict[str, Any] = {"autoreset_mode": AutoresetMode(autoreset)}
    if mode == "async":
        # A fork of a process with threads is a warning from Python 3.12 on.
        own["context"] = "spawn"
    return gymnasium.make_vec(name, num_envs, vectorization_mode=mode, vector_kwargs=own)


def entry_point(num_envs: int = 2) -> Any:
    return gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")


def atari(num_envs: int = 2, autoreset: str = "NextStep", batch_size: int = 0) -> Any:
    pytest.importorskip("ale_py")
    return gymnasium.make_vec(
        "ALE/Pong-v5",
        num_envs,
        vectorization_mode="vector_entry_point",
        autoreset_mode=autoreset,
        batch_size=batch_size,
        max_num_frames_per_episode=100,
    )


def envpool(name: str, num_envs: int = 2, seed: int = 3, **kwargs: Any) -> Any:
    package = pytest.importorskip("envpool")
    return package.make(name, env_type="gymnasium", num_envs=num_envs, seed=seed, **kwargs)


def pooled(name: str, **kwargs: Any) -> Kind:
    # It takes its seed when it is made; `reset` warns of one.
    return Kind(functools.partial(envpool, name, **kwargs), {"seed": 11}, seeds=False)


KINDS = {
    "sync": Kind(functools.partial(gymnasiums, "CartPole-v1", "sync")),
    "sync, same step": Kind(
        functools.partial(gymnasiums, "CartPole-v1", "sync"), {"autoreset": "SameStep"}
    ),
    "async": Kind(functools.partial(gymnasiums, "CartPole-v1", "async")),
    "entry point": Kind(entry_point),
    "ale": Kind(atari),
    "ale, same step": Kind(atari, {"autoreset": "SameStep"}),
    "envpool CartPole": pooled("CartPole-v1"),
    "envpool Pong": pooled("Pong-v5", max_episode_steps=20),
    "envpool FrozenLake": pooled("FrozenLake-v1"),
    "envpool Dict": pooled("CheetahRun-v1", max_episode_steps=20),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    found = KINDS[request.param]
    found.make(1).close()
    return found


def actions_of(space: Any, random: np.random.Generator) -> Any:
    if isinstance(space, gymnasium.spaces.Discrete):
        return random.integers(0, space.n, ROWS)
    return random.uniform(-0.9, 0.9, (ROWS, *space.shape)).astype(space.dtype)


def in_space(env: Any, observation: Any) -> Any:
    """Observations in the dtype of their space: those of EnvPool's FrozenLake are int32."""
    if isinstance(env.single_observation_space, gymnasium.spaces.Discrete):
        return observation.astype(env.single_observation_space.dtype)
    return observation


def test_steps_are_those_of_the_same_environment_in_this_process(kind: Kind) -> None:
    own = kind.make(ROWS, **kind.settings)
    arguments: dict[str, Any] = {"seed": 5} if kind.seeds else {}
    with serve(kind.make) as server, RemoteVectorEnv(server.address, ROWS, kind.settings) as envs:
        assert envs.single_observation_space == own.single_observation_space
        assert envs.single_action_space == own.single_action_space
        assert envs.metadata == own.metadata
        ends = 0
        random = np.random.default_rng(0)
        # The second reset is in the middle of episodes.
        for steps in (60, 10):
            expected, infos = own.reset(**arguments)
            assert same(envs.reset(**arguments), (in_space(own, expected), infos))
            for _ in range(steps):
                actions = actions_of(own.single_action_space, random)
                expected, rewards, terminated, truncated, infos = own.step(actions)
                found = envs.step(actions)
                assert same(found[0], in_space(own, expected))
                assert found[1].dtype == np.float64
                np.testing.assert_array_equal(found[1], rewards)
                assert same(found[2:], (terminated, truncated, infos))
                ends += int((terminated | truncated).sum())
        assert server.world_count == 1
    own.close()
    assert ends >= kind.least_ends


def test_a_plain_environment_has_the_same_arrays(kind: Kind) -> None:
    own = kind.make(ROWS, **kind.settings)
    settings = {"num_envs": ROWS, **kind.settings}
    follows = own.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP

    def check(observation: Mapping[str, Any], expected: Any) -> None:
        found = {name: array for name, array in observation.items() if name != STEP_TYPE}
        expected = in_space(own, expected)
        assert same(found if isinstance(expected, dict) else found["observation"], expected)

    with serve(kind.make) as server, make(server.address, settings) as env:
        arguments: dict[str, Any] = {"seed": 5} if kind.seeds else {}
        expected, _ = own.reset(**arguments)
        check(env.reset(arguments).observation, expected)
        random = np.random.default_rng(1)
        was_last = np.zeros(ROWS, bool)
        for _ in range(30):
            actions = actions_of(own.single_action_space, random)
            expected, rewards, terminated, truncated, _ = own.step(actions)
            timestep = env.step({"action": actions})
            check(timestep.observation, expected)
            kinds = timestep.observation[STEP_TYPE]
            np.testing.assert_array_equal(timestep.reward, rewards)
            np.testing.assert_array_equal(timestep.discount == 0, terminated)
            np.testing.assert_array_equal(kinds == 2, terminated | truncated)
            np.testing.assert_array_equal(kinds == 0, was_last & follows)
            was_last = kinds == 2
    own.close()


def test_a_reset_begins_episodes_in_the_rows_of_its_mask_alone() -> None:
    def rows() -> SyncVectorEnv:
        makes = [functools.partial(Masked, length=length) for length in (1, 2, 3)]
        return SyncVectorEnv(makes, autoreset_mode=AutoresetMode.DISABLED)

    with serve(rows) as server, make(server.address, {"num_envs": 3}) as env:

        def kinds(timestep: dm_env.TimeStep) -> list[int]:
            shown.append(timestep.observation["observation"].argmax(1))
            return list(timestep.observation[STEP_TYPE])

        def step() -> dm_env.TimeStep:
            return env.step({"action": shown[-1]})

        shown: list[Any] = []
        assert kinds(env.reset()) == [0, 0, 0]
        assert kinds(step()) == [2, 1, 1]
        assert kinds(env.reset({"reset_mask": np.array([True, False, False])})) == [0, 1, 1]
        assert kinds(step()) == [2, 2, 1]
        assert kinds(env.reset()) == [0, 0, 0]
        assert kinds(step()) == [2, 1, 1]


def test_every_row_may_have_a_seed_of_its_own() -> None:
    own = atari(3)
    seeds = [4, 9, 4]
    with serve(atari) as server, RemoteVectorEnv(server.address, 3) as envs:
        expected, infos = own.reset(seed=np.array(seeds))
        assert same(envs.reset(seed=seeds), (expected, infos))
        # Another kind of seed in a later reset.
        assert same(envs.reset(seed=2), own.reset(seed=2))
    own.close()


@pytest.mark.parametrize("factory", [atari, functools.partial(envpool, "CartPole-v1")])
def test_a_pool_that_answers_some_rows_only_is_refused(factory: Callable[..., Any]) -> None:
    factory(1).close()
    with (
        serve(factory) as server,
        pytest.raises(
            DmEnvRpcError, match="steps 2 of its 4 rows at a time; create it with batch_s"
        ),
    ):
        make(server.address, {"num_envs": 4, "batch_size": 2})


def test_every_row_is_rendered() -> None:
    factory = functools.partial(envpool, "CartPole-v1", render_mode="rgb_array")
    own = factory(2)
    own.reset()
    expected = own.render(env_ids=[0, 1])
    with (
        serve(factory) as server,
        RemoteVectorEnv(server.address, 2, render_mode="rgb_array") as envs,
    ):
        envs.reset()
        frames = envs.render()
        assert frames is not None
        assert same(np.stack(frames), expected)
    own.close()


def fixed(seed: int = 3) -> Any:
    """Has a number of rows that nobody can choose."""
    return cart_poles(4)


def test_the_number_of_rows_is_the_servers_if_nobody_says_another() -> None:
    own = fixed()
    with serve(fixed) as server, RemoteVectorEnv(server.address) as envs:
        assert (envs.num_envs, server.world_count) == (4, 1)
        assert same(envs.reset(seed=5), own.reset(seed=5))
        for _ in range(30):
            actions = np.ones(4, np.int64)
            assert same(envs.step(actions), own.step(actions))
    own.close()
    with serve(fixed) as server, serve(entry_point) as other:
        with RemoteVectorEnv([server.address, server.address]) as envs:
            assert (envs.num_envs, server.world_count) == (8, 2)
            assert envs.reset(seed=1)[0].shape == (8, 4)
        with BatchedEnvironment(server.address) as batch:
            assert batch.step({"action": np.ones(4, np.int64)}).observation[
                "observation"
            ].shape == (
                4,
                4,
            )
        with RemoteVectorEnv([server.address, other.address]) as envs:
            assert envs.num_envs == 4 + 2


@pytest.mark.parametrize("count", [1, 3, 8])
def test_another_number_of_rows_than_there_are_is_an_error(count: int) -> None:
    with serve(fixed) as server:
        with pytest.raises(
            EnvironmentsFailedError, match=r"already has 4 rows.*request 4 rows or omit"
        ):
            RemoteVectorEnv(server.address, count)
        assert server.world_count == 0
        with RemoteVectorEnv(server.address, 4) as envs:
            assert (envs.num_envs, server.world_count) == (4, 1)
        with pytest.raises(EnvironmentsFailedError, match=r"'rows.seed'.* already has 4 rows"):
            RemoteVectorEnv(server.address, 4, lambda index: {"seed": index})


def test_one_row_of_a_factory_that_makes_more_by_default() -> None:
    with serve(entry_point) as server, RemoteVectorEnv(server.address, 1) as envs:
        assert (envs.num_envs, server.world_count) == (1, 1)
        assert envs.reset(seed=1)[0].shape == (1, 4)


def deaf(num_envs: int = 2) -> Any:
    return cart_poles(2)


def test_a_factory_that_takes_no_notice_of_the_number_is_found_out() -> None:
    with serve(deaf) as server:
        with pytest.raises(
            SpecError, match=r"requested 3 rows, but the server at .* made a batch of 2"
        ):
            RemoteVectorEnv(server.address, 3)
        assert server.world_count == 0
