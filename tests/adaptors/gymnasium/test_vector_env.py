"""RemoteVectorEnv: what it has beside the episodes, which test_autoreset compares."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import dm_env
import gymnasium
import numpy as np
import pytest
from dm_env import specs
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client import (
    BatchedEnvironment,
    DmEnvAdaptor,
    EnvironmentsFailedError,
    SpecError,
)
from dm_env_rpc_client.adaptors.gymnasium.info_observation import EXTRAS
from dm_env_rpc_client.adaptors.gymnasium.to_dm_env import GymnasiumEnvironment
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.server import Server, serve
from tests.adaptors.gymnasium.known import cart_poles, entry_point
from tests.adaptors.sameness import same
from tests.support.environments import Echo, Robot
from tests.support.serving import serving
from tests.support.stopwatch import patience
from tests.travelling.environments.usual import Usual


class Short(dm_env.Environment):
    """Episodes of `length` steps, the even ones truncated; all but the first reset `pause`."""

    def __init__(self, length: int = 2, pause: float = 0.0):
        self._length, self._pause = length, pause
        self._episode = 0

    def action_spec(self) -> dict[str, Any]:
        return {"value": specs.DiscreteArray(100)}

    def observation_spec(self) -> dict[str, Any]:
        return {"value": specs.Array((2,), np.int64)}

    def reset(self) -> dm_env.TimeStep:
        time.sleep(self._pause * (self._episode > 0))  # It takes time to reset.
        self._episode += 1
        self._step = 0
        return dm_env.restart({"value": np.array([self._episode, 0])})

    def step(self, action: Any) -> dm_env.TimeStep:
        self._step += 1
        observation = {"value": np.array([self._episode, int(action["value"])])}
        if self._step < self._length:
            return dm_env.transition(1.0, observation)
        end = dm_env.truncation if self._episode % 2 == 0 else dm_env.termination
        return end(2.0, observation)


class Discounted(Short):
    """Has a discount of two values."""

    def discount_spec(self) -> specs.Array:
        return specs.Array((2,), np.float64)

    def step(self, action: Any) -> dm_env.TimeStep:
        timestep = super().step(action)
        discount = np.zeros(2) if timestep.last() else np.array([0.5, 0.25])
        return timestep._replace(discount=discount)


short = serving(Short, scope="function")


@contextlib.contextmanager
def vector(*args: Any, **kwargs: Any) -> Iterator[RemoteVectorEnv]:
    with RemoteVectorEnv(*args, **kwargs) as env:
        yield env


def test_a_render_mode_that_there_is_not_is_a_warning(short: Server) -> None:
    with pytest.warns(UserWarning, match="render_mode 'rgb_array' is not available"):
        env = RemoteVectorEnv(short.address, 3, render_mode="rgb_array")
    with contextlib.closing(env):
        env.reset()
        assert env.render_mode is None
        assert env.render() is None
        assert env.metadata == {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}
    assert bool(env.closed)
    assert short.world_count == 0


def test_an_episode_that_is_about_to_begin_cannot_be_disturbed() -> None:
    settings = [{"length": 1}, {"length": 1, "pause": patience(1.0)}]
    with (
        # Otherwise the first waits behind the reset of the second, on the thread of both.
        serve(Short, threads="world") as server,
        vector(server.address, 2, settings, autoreset_mode="SameStep", num_batches=0) as env,
    ):
        env.reset()
        env.send([1, 2])
        assert env.recv()[-1].tolist() == [0]
        with pytest.raises(SpecError, match=r"environments \[1\] have pending steps"):
            env.send([3], [1])
        with pytest.raises(SpecError, match=r"setting 'length'"):
            env.reset(options={"length": None})
        observation, rewards, terminations, _, infos, ids = env.recv()
        assert ids.tolist() == [1]
        assert (rewards.tolist(), terminations.tolist()) == ([2.0], [True])
        assert infos["final_obs"][0].tolist() == [1, 2]
        assert observation.tolist() == [[2, 0]]
        # A reset drops it.
        env.send([1, 2])
        observation, _ = env.reset()
        assert observation.tolist() == [[3, 0], [3, 0]]
        env.send([5, 6])
        for _ in range(2):
            _, rewards, *_, infos, ids = env.recv(1, 1)
            assert rewards.tolist() == [2.0]
            assert infos["final_obs"][0].tolist() == [3, 5 + int(ids[0])]


def test_seeds_are_counted_up_or_listed(catch_server: Server) -> None:
    with vector(catch_server.address, 3) as env, vector(catch_server.address, 3) as other:
        boards, _ = env.reset(seed=5)
        assert env.np_random_seed == 5
        np.testing.assert_array_equal(other.reset(seed=[5, 6, 7])[0], boards)
        np.testing.assert_array_equal(env.reset(seed=np.int64(5))[0], boards)
        np.testing.assert_array_equal(env.reset(options={"seed": 5})[0][[0] * 3], boards[[0] * 3])
        mask = np.array([False, True, False])
        before, _ = env.reset(seed=5)
        env.step(env.action_space.sample())
        moved = env.step(env.action_space.sample())[0]
        after, _ = env.reset(seed=[None, 6, None], options={"reset_mask": mask})
        np.testing.assert_array_equal(after[1], before[1])
        np.testing.assert_array_equal(after[[0, 2]], moved[[0, 2]])
        with pytest.raises(SpecError, match="expected 3 seeds, got 2"):
            env.reset(seed=[1, 2])
    with vector(catch_server.address, 2, seed_setting=None) as env:
        env.reset(seed=1)
    refused = pytest.raises(EnvironmentsFailedError, match="'seed'")
    with serve(Echo) as server, vector(server.address, 2) as env, refused:
        env.reset(seed=1)


@pytest.mark.parametrize(
    "mask",
    [[True], np.array([True]), np.array([1, 0]), np.array([False, False]), True, "yes"],
)
def test_wrong_masks_are_refused(short: Server, mask: Any) -> None:
    with vector(short.address, 2) as env:
        env.reset()
        with pytest.raises(SpecError, match=r"'reset_mask': expected bool \[2\]"):
            env.reset(options={"reset_mask": mask})


def test_the_first_reset_is_of_all_and_comes_first(short: Server) -> None:
    with vector(short.address, 2) as env:
        with pytest.raises(gymnasium.error.ResetNeeded, match=r"environments \[0, 1\]"):
            env.step([1, 2])
        with pytest.raises(gymnasium.error.ResetNeeded, match="first reset"):
            env.reset(options={"reset_mask": np.array([True, False])})
        env.reset()
        env.step([1, 2])
        assert env.reset(options={"reset_mask": [True, False]})[0].tolist() == [[2, 0], [1, 2]]


def test_disabled_asks_for_a_reset_of_those_that_are_at_their_end(short: Server) -> None:
    settings = [{"length": 1}, {"length": 5}]
    mode = AutoresetMode.DISABLED
    with vector(short.address, 2, settings, autoreset_mode=mode, num_batches=2) as env:
        env.reset()
        env.step([1, 2])
        with pytest.raises(gymnasium.error.ResetNeeded, match=r"environments \[0\]"):
            env.step([3, 4])
        env.send([3], [1])
        assert env.recv()[0].tolist() == [[1, 3]]


def test_one_array_stays_in_a_mapping_if_told_so_and_actions_are_those_of_the_specs() -> None:
    with serve(Robot) as server, vector(server.address, 2) as env:
        env.reset()
        assert f"<RemoteVectorEnv of 2 at {server.address}: actions " in repr(env)
        assert "camera.rgb uint8 [4, 5, 3]" in repr(env)
        assert "heard.0 string [], heard.1 string []>" in repr(env)
        with pytest.raises(SpecError, match=r"expected the actions .*'mode'.*, got 'mode'"):
            env.step({"mode": [1, 2]})
    with serve(Echo) as server, vector(server.address, 2, unwrap_single=False) as env:
        assert isinstance(env.action_space, spaces.Dict)
        env.reset()
        assert env.step({"value": [1, 2]})[0]["value"].tolist() == [1, 2]


def test_settings_that_change_the_specs_are_refused(catch_server: Server) -> None:
    with vector(catch_server.address, 2) as env:
        with pytest.raises(SpecError, match="specs of the environments have changed"):
            env.reset(options={"rows": 3})
        assert env.reset(options={"rows": 10})[0].shape == (2, 10, 5)


def test_rewards_are_numbers_and_nothing_is_left_where_they_are_not(catch_server: Server) -> None:
    class Two(DmEnvAdaptor):
        def reward_spec(self) -> Any:
            return specs.Array((2,), np.float64, "reward")

    with pytest.raises(SpecError, match="rewards are numbers"):
        RemoteVectorEnv(catch_server.address, 2, adaptor_class=Two)
    assert catch_server.world_count == 0
    with pytest.raises(EnvironmentsFailedError):
        RemoteVectorEnv("localhost:1", 2, timeout=0.5)


@pytest.mark.parametrize("num_batches", [0, 1, 2])
def test_infos_of_some_rows_have_as_many(num_batches: int) -> None:
    class Informing(Usual):
        def inform(self) -> Any:
            return {"number": self.row, "nested": {"pair": np.full(2, self.row)}}

    with (
        serve(Informing) as server,
        RemoteVectorEnv(
            server.address,
            5,
            lambda row: {"row": row},
            num_batches=num_batches,
            autoreset_mode=AutoresetMode.SAME_STEP,
        ) as envs,
    ):
        envs.reset()
        for is_last in (False, False, True):
            envs.send(np.zeros(5, np.int64))
            seen: list[int] = []
            while len(seen) < 5:
                observations, *_, infos, ids = envs.recv(1, 2)
                seen += ids.tolist()
                finals = np.stack(infos["final_obs"]) if is_last else observations
                assert (finals[:, 0] // 10 == ids).all()
                own = infos["final_info"] if is_last else infos
                assert own["number"].tolist() == ids.tolist()
                assert own["_number"].tolist() == [True] * len(ids)
                assert own["nested"]["pair"].tolist() == [[row, row] for row in ids]
                assert own["nested"]["_pair"].shape == (len(ids),)
            assert sorted(seen) == list(range(5))


def test_the_discounts_of_rows_that_begin_beside_others_are_masked() -> None:
    """A row that begins an episode has no discount; those beside it have theirs, value by value."""
    settings = [{"length": 1}, {"length": 9}]
    with serve(Discounted) as server, vector(server.address, 2, settings) as env:
        env.reset()
        env.step(np.array([1, 1]))
        info = env.step(np.array([1, 1]))[4]
        np.testing.assert_array_equal(info["_discount"], [False, True])
        np.testing.assert_array_equal(info["discount"], [[0, 0], [0.5, 0.25]])


class Mangled(GymnasiumEnvironment):
    """The infos of row 2 are no JSON in steps."""

    def __init__(self, row: int):
        super().__init__(Usual(row))
        self._row = row

    def step(self, action: Any) -> dm_env.TimeStep:
        timestep = super().step(action)
        if self._row == 2:
            timestep.observation[EXTRAS] = "{no JSON"
        return timestep


def test_infos_that_are_no_json_fail_their_own_environment_only() -> None:
    with (
        serve(Mangled) as server,
        vector(server.address, 4, lambda row: {"row": row}, num_batches=0) as envs,
    ):
        envs.reset()
        with pytest.raises(EnvironmentsFailedError, match="JSON") as caught:
            envs.step(np.zeros(4, np.int64))
        assert list(caught.value.failures) == [2]
        envs.send(np.zeros(4, np.int64))
        found: list[int] = []
        failed: list[int] = []
        while len(found) + len(failed) < 4:
            try:
                observations, *_, ids = envs.recv()
                assert (observations[:, 0] == 10 * ids + 2).all()
                found += ids.tolist()
            except EnvironmentsFailedError as error:
                failed += error.failures
        assert (sorted(found), failed) == ([0, 1, 3], [2])


@pytest.mark.parametrize("num_batches", [0, 1, 2])
def test_what_is_received_is_in_the_order_of_its_rows(short: Server, num_batches: int) -> None:
    lengths = [{"length": 1}, {"length": 2}, {"length": 3}]
    with vector(short.address, 3, lengths, num_batches=num_batches) as env:
        env.reset()
        env.send(np.arange(3))
        seen = 0
        while seen < 3:
            observations, rewards, terminated, _, infos, ids = env.recv()
            assert observations[:, 1].tolist() == ids.tolist()
            assert rewards.tolist() == np.where(ids == 0, 2.0, 1.0).tolist()
            assert terminated.tolist() == (ids == 0).tolist()
            assert infos["discount"].tolist() == (ids != 0).tolist()
            seen += len(ids)


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
