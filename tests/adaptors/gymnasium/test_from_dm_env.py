"""dm_env environments, remote or not, as Gymnasium environments."""

from __future__ import annotations

import warnings
from typing import Any

import dm_env
import gymnasium
import numpy as np
import pytest
from dm_env import specs
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

import dm_env_rpc_client
from dm_env_rpc_client import DmEnvRpcError, SpecError
from dm_env_rpc_client.adaptors.gymnasium import GymnasiumEnv, make_remote
from dm_env_rpc_client.server import Catch, Server, serve
from tests.adaptors.gymnasium.known import REMOTE
from tests.adaptors.sameness import same
from tests.support.environments import Echo, Robot
from tests.support.programs import run_python
from tests.travelling.environments.of_dm_env import FIRST, LAST, Timed


class Filmed(Catch):
    """Catch that is seen by two cameras as well."""

    def observation_spec(self) -> dict[str, Any]:
        image = specs.BoundedArray((self._rows, self._columns, 3), np.uint8, 0, 255)
        return {**super().observation_spec(), "left": {"rgb": image}, "right": {"rgb": image}}

    def _observation(self) -> dict[str, Any]:
        observation = super()._observation()
        left = np.repeat(np.uint8(255 * observation["board"])[..., np.newaxis], 3, axis=2)
        return {**observation, "left": {"rgb": left}, "right": {"rgb": 255 - left}}


def ending(truncates: bool = False, discount: Any = 0.5) -> dm_env.Environment:
    """One step, which ends as it is told to, with a discount of the server's own."""
    left = discount if truncates else np.zeros_like(discount)
    return Timed(
        0,
        [(FIRST, None, None), (LAST, 2.0, left)],
        {"seen": specs.Array((), np.float32)},
        action={"go": specs.DiscreteArray(2)},
        discount=specs.Array(np.shape(discount), float, "discount"),
    )


def test_check_env_finds_nothing_wrong_with_one_that_renders() -> None:
    with serve(Filmed) as server:
        env = gymnasium.make(
            REMOTE, address=server.address, render_mode="rgb_array", disable_env_checker=True
        ).unwrapped
        with env, warnings.catch_warnings():
            warnings.simplefilter("error")
            check_env(env)
            assert env.metadata["render_modes"] == ["rgb_array"]


@pytest.mark.parametrize(
    ("truncates", "discount", "found"),
    [
        (False, 0.5, 0.0),
        (True, 1.0, 1.0),
        (True, 0.5, 0.5),
        (True, np.array([0.5]), np.array([0.5])),
        (True, np.array([0.5, 0.25]), np.array([0.5, 0.25])),
    ],
)
def test_ends_are_terminated_or_truncated(truncates: bool, discount: Any, found: Any) -> None:
    with GymnasiumEnv(ending(truncates, discount)) as env:
        env.reset()
        _, reward, terminated, truncated, info = env.step(1)
        assert (reward, terminated, truncated) == (2.0, not truncates, truncates)
        assert same(info, {"discount": found})
        assert type(info["discount"]) is type(found)


def test_the_servers_state_says_how_it_ended_whatever_its_discount() -> None:
    class Undiscounted(dm_env_rpc_client.DmEnvAdaptor):
        def discount(self, state: int, step_type: dm_env.StepType, observations: Any) -> Any:
            return None if step_type is dm_env.StepType.FIRST else 0.9

    with serve(ending) as server, make_remote(server.address, adaptor_class=Undiscounted) as env:
        env.reset()
        assert env.step(0)[1:] == (2.0, True, False, {"discount": 0.9})


def test_structures_are_dicts_and_tuples() -> None:
    with GymnasiumEnv(Robot()) as env:
        assert isinstance(env.action_space, spaces.Dict)
        assert env.action_space["mode"] == spaces.Discrete(4)
        assert isinstance(env.observation_space, spaces.Dict)
        assert isinstance(env.observation_space["joints"], spaces.Tuple)
        assert env.reset()[0] in env.observation_space
        assert env.step(env.action_space.sample())[0] in env.observation_space


def test_one_array_goes_without_the_mappings_around_it_unless_told_otherwise(
    echo_environment_server: Server,
) -> None:
    address = echo_environment_server.address
    with make_remote(address) as env:
        assert isinstance(env.action_space, spaces.Box)
        env.reset()
        observation = env.step(np.array(5))[0]
        assert isinstance(observation, np.ndarray)
        assert observation == 5
    with make_remote(address, unwrap_single=False) as env:
        assert isinstance(env.action_space, spaces.Dict)
        env.reset()
        assert env.step({"value": np.array(5)})[0] == {"value": 5}
        with pytest.raises(SpecError, match=r"'action'.*keys \['value'\].*got int"):
            env.step(5)


def test_seeds_are_settings_unless_told_otherwise(echo_environment_server: Server) -> None:
    address = echo_environment_server.address
    with make_remote(address) as env, pytest.raises(DmEnvRpcError, match="seed"):
        env.reset(seed=1)
    with make_remote(address, seed_setting=None) as env:
        env.reset(seed=1)
        assert env.np_random_seed == 1
    with make_remote(address, seed_setting="length") as env:
        env.reset(seed=1)
        assert env.step(np.array(0))[3]


def test_an_environment_without_settings_hears_of_no_seeds_and_refuses_options() -> None:
    with GymnasiumEnv(Echo()) as env:
        env.reset(seed=1, options={})
        with pytest.raises(SpecError, match="accepts no settings"):
            env.reset(options={"length": 3})


def test_settings_that_change_the_specs_are_refused(catch_server: Server) -> None:
    with make_remote(catch_server.address) as env:
        with pytest.raises(SpecError, match="change the specs"):
            env.reset(options={"rows": 3})
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step(0)
        assert env.reset(options={"rows": 10})[0].shape == (10, 5)


def test_rendering_shows_the_last_image() -> None:
    with serve(Filmed) as server:
        address = server.address
        with make_remote(address, render_mode="rgb_array") as env:
            with pytest.raises(gymnasium.error.ResetNeeded):
                env.render()
            observation, _ = env.reset()
            np.testing.assert_array_equal(env.render(), observation["left"]["rgb"])
            observation = env.step(1)[0]
            np.testing.assert_array_equal(env.render(), observation["left"]["rgb"])
        with make_remote(address, render_mode="rgb_array", render_observation="right.rgb") as env:
            observation, _ = env.reset()
            np.testing.assert_array_equal(env.render(), observation["right"]["rgb"])
        with make_remote(address) as env:
            env.reset()
            assert env.render() is None
        with make_remote(address, render_mode="rgb_array", render_observation="board") as env:
            observation, _ = env.reset()
            board = np.repeat(observation["board"][..., None] * 255, 3, axis=2)
            np.testing.assert_array_equal(env.render(), board.astype(np.uint8))
        with pytest.raises(SpecError, match=r"image observations: .*left\.rgb, right\.rgb"):
            make_remote(address, render_observation="nothing")
        with pytest.warns(UserWarning, match="render_mode 'human' is not available"):
            env = make_remote(address, render_mode="human")
        with env:
            env.reset()
            assert env.render() is env.render_mode is None
        assert server.world_count == 0


def test_the_image_may_be_all_that_there_is() -> None:
    with (
        serve(Filmed) as server,
        make_remote(
            server.address, render_mode="rgb_array", requested_observations=["left.rgb"]
        ) as env,
    ):
        observation, _ = env.reset()
        np.testing.assert_array_equal(env.render(), observation)


def test_rewards_are_numbers() -> None:
    class Two(Echo):
        def reward_spec(self) -> Any:
            return specs.Array((2,), np.float32, "reward")

    with pytest.raises(SpecError, match=r"rewards are numbers.*adaptor_class"):
        GymnasiumEnv(Two())


def test_what_is_behind_is_there_and_closed_with_it(catch_server: Server) -> None:
    env = make_remote(catch_server.address)
    assert isinstance(env.environment, dm_env_rpc_client.DmEnvAdaptor)
    env.close()
    env.close()
    assert catch_server.world_count == 0


MAKE = """
import warnings
warnings.simplefilter("error")
from dm_env_rpc_client.server import Catch, serve
with serve(Catch) as server:
    env = gymnasium.make("dm_env_rpc_client.gymnasium:Remote-v0", address=server.address)
    env.reset(seed=1)
    print(env.step(1)[1:])
    env.close()
    envs = gymnasium.make_vec(
        "dm_env_rpc_client.gymnasium:Remote-v0", num_envs=2, address=server.address
    )
    print(type(envs.unwrapped).__name__)
    envs.close()
"""


@pytest.mark.parametrize(
    "imports",
    [
        "import gymnasium",
        "import gymnasium, dm_env_rpc_client",
        "import dm_env_rpc_client, gymnasium",
        "import dm_env_rpc_client.environment.worlds, gymnasium",
        "import dm_env_rpc_client, gymnasium, importlib; importlib.reload(dm_env_rpc_client)",
    ],
)
def test_gymnasium_makes_them_in_whatever_order_the_packages_are_imported(imports: str) -> None:
    finished = run_python("-c", f"{imports}\n{MAKE}", timeout=90)
    assert finished.stdout.splitlines() == [
        "(0.0, False, False, {'discount': 1.0})",
        "RemoteVectorEnv",
    ]


def test_the_package_has_its_spec_although_it_keeps_it_to_itself() -> None:
    import importlib.util

    spec = importlib.util.find_spec("dm_env_rpc_client")
    assert spec is dm_env_rpc_client.__spec__
    assert spec is not None
    assert spec.name == "dm_env_rpc_client"
