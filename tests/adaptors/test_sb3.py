"""Stable-Baselines3 with remote environments: as with local ones, and agents that learn."""

from __future__ import annotations

import contextlib
import functools
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest

from dm_env_rpc_client import SpecError
from dm_env_rpc_client.server import Catch, Server, serve
from tests.adaptors.gymnasium.known import REMOTE, cart_pole
from tests.adaptors.gymnasium.masked import Masked
from tests.adaptors.sameness import same
from tests.reliability.recording import Seen
from tests.support.serving import serving
from tests.travelling.environments.all import make as make_travelling
from tests.travelling.told import difference

pytest.importorskip("stable_baselines3")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import stable_baselines3 as sb3
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

    from dm_env_rpc_client.adaptors.sb3 import RemoteSb3VecEnv

PLACES: dict[str, dict[str, Any]] = {
    "batch": {},
    "streams": {"num_batches": 0},
    "two batches": {"num_batches": 2},
}

server = serving({"CartPole": cart_pole, "Catch": Catch})


def remote(server: Server, name: str, **settings: Any) -> Any:
    return contextlib.closing(RemoteSb3VecEnv(server.address, 3, {"environment": name, **settings}))


LIMITED = ("truncated", "both flags")


@pytest.mark.row(61)
@pytest.mark.parametrize("place", PLACES)
def test_steps_and_infos_are_those_of_a_dummy_vec_env(place: str, seen: Seen) -> None:
    """The VecEnv adds its form to the infos by row that the table of `travelling` compares."""
    with serve(make_travelling) as server:
        for habit in ("tells a Discrete", "lists and tuples", "dicts", *LIMITED):
            local = DummyVecEnv([functools.partial(make_travelling, habit, row) for row in (0, 1)])
            settings = [{"habit": habit, "row": row} for row in (0, 1)]
            with contextlib.closing(
                RemoteSb3VecEnv(server.address, 2, settings, **PLACES[place])
            ) as envs:
                assert envs.observation_space == local.observation_space
                assert envs.action_space == local.action_space
                for each in (envs, local):
                    each.seed(4)
                    each.set_options({"own": (1, None)})
                assert same(envs.reset(), local.reset())
                for _ in range(7):
                    assert not difference(envs.reset_infos, local.reset_infos)
                    actions = np.array([local.action_space.sample() for _ in range(2)])
                    assert not difference(envs.step(actions), local.step(actions)), habit
                # Seeds and options are those of one reset.
                assert same(envs.reset(), local.reset())
                assert not difference(envs.reset_infos, local.reset_infos)
            seen(cells=1)


def test_its_repr_says_how_many_there_are_where_and_with_which_spaces(server: Server) -> None:
    with remote(server, "CartPole") as envs:
        text = "actions int64 []; observations float32 [4]>"
        assert repr(envs) == f"<RemoteSb3VecEnv of 3 at {server.address}: {text}"
        assert repr(envs._envs) == f"<RemoteVectorEnv of 3 at {server.address}: {text}"


def test_check_env_of_stable_baselines(server: Server) -> None:
    from stable_baselines3.common.env_checker import check_env

    settings = {"environment": "CartPole"}
    with (
        gymnasium.make(REMOTE, address=server.address, create_world_settings=settings) as env,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        check_env(env.unwrapped)


def test_make_vec_env_without_arguments_of_its_own(server: Server) -> None:
    with warnings.catch_warnings():
        # It asks for pictures, and Catch has none.
        warnings.filterwarnings("ignore", "render_mode 'rgb_array' is not available")
        envs = make_vec_env(
            REMOTE,
            2,
            env_kwargs={
                "address": server.address,
                "create_world_settings": {"environment": "Catch"},
            },
        )
    with contextlib.closing(envs):
        assert envs.reset().shape == (2, 10, 5)


def test_what_remote_environments_do_not_have(server: Server) -> None:
    with remote(server, "Catch") as envs:
        assert envs.env_is_wrapped(VecMonitor) == [False] * 3
        assert envs.get_attr("render_mode", [0, 1]) == [None, None]
        with pytest.raises(AttributeError, match="no_such"):
            envs.get_attr("no_such")
        assert not envs.has_attr("no_such")
        with pytest.raises(AttributeError, match="settable_names"):
            envs.set_attr("rows", 3)
        with pytest.raises(AttributeError, match="callable_names"):
            envs.env_method("jump")
        envs.set_options([{"rows": 10}, {}, {}])
        with pytest.raises(SpecError, match="the same options"):
            envs.reset()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("algorithm", ["PPO", "A2C"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_training_is_the_same_as_in_process(server: Server, algorithm: str, seed: int) -> None:
    """The weights are equal byte for byte: of one environment, and of four in a batch."""
    settings = {"environment": "CartPole"}
    arguments = {"address": server.address, "create_world_settings": settings}
    single = make_vec_env(REMOTE, env_kwargs=arguments)
    assert weights(algorithm, seed, single) == weights(algorithm, seed, make_vec_env(cart_pole))
    vector = RemoteSb3VecEnv(server.address, 4, settings)
    assert weights(algorithm, seed, vector) == weights(
        algorithm, seed, DummyVecEnv([cart_pole] * 4)
    )


def weights(algorithm: str, seed: int, envs: Any) -> dict[str, bytes]:
    """The weights after 4,096 steps of training."""
    with contextlib.closing(envs):
        agent = getattr(sb3, algorithm)("MlpPolicy", envs, seed=seed, device="cpu")
        agent.learn(4096)
        return {
            name: values.numpy().tobytes() for name, values in agent.policy.state_dict().items()
        }


@pytest.mark.parametrize("batches", [None, 0])
def test_methods_and_attributes_are_those_of_a_dummy_vec_env(batches: int | None) -> None:
    local = DummyVecEnv([Masked] * 3)
    names = ["action_masks", "jump", "level"]
    with (
        serve(Masked, callable_names=names, settable_names=["level"]) as server,
        contextlib.closing(RemoteSb3VecEnv(server.address, 3, num_batches=batches)) as envs,
    ):
        for each in (envs, local):
            each.seed(4)
            each.reset()
        assert envs.has_attr("action_masks")
        assert not envs.has_attr("length")
        assert same(envs.env_method("action_masks"), local.env_method("action_masks"))
        for indices in (1, [2, 0], None):
            given = {"where": "up", "indices": indices}
            assert same(envs.env_method("jump", 2, **given), local.env_method("jump", 2, **given))
            for each in (envs, local):
                each.set_attr("level", 5, indices)
            assert envs.get_attr("level") == local.get_attr("level")
            assert envs.get_attr("level", indices) == local.get_attr("level", indices)
        with pytest.raises(AttributeError, match=r"serve\(callable_names"):
            envs.env_method("close")
