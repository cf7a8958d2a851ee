"""Batches of other projects, and lookalikes of simulators: through the wire as in this process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from dm_env_rpc_client import DmEnvRpcError, make
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.server import serve
from tests.adaptors.gymnasium import simulators
from tests.adaptors.gymnasium.batches import WAYS, Batch, check, episodes
from tests.adaptors.gymnasium.known import cart_poles, entry_point
from tests.adaptors.sameness import same

STEPS = 120

# EnvPool describes its spaces in float64.
pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered:UserWarning")


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


def envpool(num_envs: int = 2, name: str = "CartPole-v1", seed: int = 3, **kwargs: Any) -> Any:
    package = pytest.importorskip("envpool")
    return package.make(name, env_type="gymnasium", num_envs=num_envs, seed=seed, **kwargs)


def pooled(name: str, **kwargs: Any) -> Batch:
    # It takes its seed when it is made; `reset` warns of one.
    made = functools.partial(envpool, name=name, **kwargs)
    return Batch(made, "envpool", {"seed": 11}, "NEXT_STEP", seeds=False)


def lookalike(make: Any) -> Batch:
    form = f"{make.__name__}: arrays torch on cpu, 5 values"
    return Batch(
        make, "torch", mode="SAME_STEP", library="torch", form=form, rows=simulators.ROWS,
        least_ends=STEPS,
    )  # fmt: skip


BATCHES = {
    "sync": Batch(cart_poles, mode="NEXT_STEP"),
    "sync, same step": Batch(cart_poles, settings={"mode": "SAME_STEP"}, mode="SAME_STEP"),
    "async": Batch(cart_poles, settings={"vectorized": "async"}, mode="NEXT_STEP"),
    "entry point": Batch(entry_point, mode="NEXT_STEP"),
    "ale": Batch(atari, "ale_py", mode="NEXT_STEP"),
    "ale, same step": Batch(atari, "ale_py", {"autoreset": "SameStep"}, "SAME_STEP"),
    "envpool CartPole": pooled("CartPole-v1"),
    "envpool Pong": pooled("Pong-v5", max_episode_steps=20),
    "envpool FrozenLake": pooled("FrozenLake-v1"),
    "envpool Dict": pooled("CheetahRun-v1", max_episode_steps=20),
    "IsaacLab": lookalike(simulators.IsaacLab),
    "ManiSkill": lookalike(simulators.ManiSkill),
}


CASES = [
    (name, way)
    for name, batch in BATCHES.items()
    for way in (*WAYS, "make_vec of a child")
    # The form is of a batch whose arrays are converted.
    if batch.form or way == WAYS[0] or (way == "make" and name != "async")
]


@functools.cache
def played(name: str) -> Any:
    return episodes(BATCHES[name], STEPS)


@pytest.mark.parametrize(("name", "way"), CASES)
def test_every_step_is_that_of_the_batch_in_this_process(name: str, way: str) -> None:
    batch = BATCHES[name]
    pytest.importorskip(batch.needs)
    processes = 1 if way.endswith("of a child") else None
    with serve(batch.make, autoreset_mode=batch.mode, processes=processes) as server:
        check(batch, way.removesuffix(" of a child"), server.address, played(name))
        assert not server.errors


def test_spaces_and_metadata_are_those_of_the_batch() -> None:
    for name in ("sync", "sync, same step"):
        own = BATCHES[name].make(3, **BATCHES[name].settings)
        with (
            serve(cart_poles) as server,
            RemoteVectorEnv(server.address, 3, BATCHES[name].settings) as envs,
        ):
            assert envs.single_observation_space == own.single_observation_space
            assert envs.single_action_space == own.single_action_space
            assert envs.metadata == own.metadata
            assert envs.autoreset_mode is own.metadata["autoreset_mode"]
        own.close()


def test_every_row_may_have_a_seed_of_its_own() -> None:
    own = atari(3)
    seeds = [4, 9, 4]
    with serve(atari) as server, RemoteVectorEnv(server.address, 3) as envs:
        expected, infos = own.reset(seed=np.array(seeds))
        assert same(envs.reset(seed=seeds), (expected, infos))
        # Another kind of seed in a later reset.
        assert same(envs.reset(seed=2), own.reset(seed=2))
    own.close()


@pytest.mark.parametrize("factory", [atari, envpool])
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
    factory = functools.partial(envpool, render_mode="rgb_array")
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
