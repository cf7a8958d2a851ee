"""Vector environments of Gymnasium, each served as one world."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from dm_env_rpc_client import DmEnvRpcError, make
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.server import serve
from tests.server.batches.steps import begun, stepped
from tests.support.scripted import playing


def cart_poles(num_envs: int = 2, mode: str = "NextStep") -> Any:
    return gymnasium.make_vec(
        "CartPole-v1",
        num_envs,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode(mode)},
    )


def test_a_vector_environment_without_autoreset_takes_a_mask() -> None:
    own = cart_poles(3, "Disabled")
    with playing(cart_poles, {"num_envs": 3, "mode": "Disabled"}) as env:
        own.reset(seed=1)
        env.reset({"seed": 1})
        ended = np.zeros(3, bool)
        while not ended.any():
            expected, _, terminated, truncated, _ = own.step(np.ones(3, np.int64))
            values = stepped(env, {"action": np.ones(3, np.int64)})
            ended = terminated | truncated
        np.testing.assert_array_equal(values[batches.STEP_TYPE] == 2, ended)
        expected, _ = own.reset(options={"reset_mask": ended})
        values = begun(env, {"reset_mask": ended})
        np.testing.assert_array_equal(values["observation"][~ended], expected[~ended])
        np.testing.assert_array_equal(values[batches.STEP_TYPE], np.where(ended, 0, 1))
        with pytest.raises(DmEnvRpcError, match=r"'reset_mask': expected bool \[3\]"):
            env.reset({"reset_mask": [True]})
        with pytest.raises(DmEnvRpcError, match=r"'seed': expected an integer, or one for each"):
            env.reset({"seed": [1, 2]})
    own.close()


def test_a_vector_environment_is_asked_for_a_number_that_is_allowed() -> None:
    expected = pytest.raises(DmEnvRpcError, match="a batch has 1 to 16384 environments")
    with serve(cart_poles) as server, expected:
        make(server.address, {"num_envs": 1_000_000})


class Informed(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Rows with infos, of which the second has them, and frames."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP, "render_fps": 5}  # noqa: RUF012
    render_mode = "rgb_array"
    num_envs = 2
    single_action_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.MultiDiscrete([2, 2])
    single_observation_space = gymnasium.spaces.Dict({"x": gymnasium.spaces.Box(0, 1, (1,))})
    observation_space = gymnasium.spaces.Dict({"x": gymnasium.spaces.Box(0, 1, (2, 1))})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        return {"x": np.zeros((2, 1), np.float32)}, {}

    def step(self, actions: Any) -> Any:
        infos = {"lives": np.array([0, 3]), "_lives": np.array([False, True])}
        ended = np.array([True, False])
        return {"x": np.ones((2, 1), np.float32)}, np.ones(2), ended, ended, infos

    def render(self) -> Any:
        return np.zeros((2, 4, 4, 3), np.uint8)


def test_a_vector_environment_that_takes_no_mask_says_so() -> None:
    # It would begin episodes in all rows, and the rows outside of the mask would lie.
    with playing(Informed) as env:
        env.reset()
        with pytest.raises(
            DmEnvRpcError,
            match="Informed with autoreset mode NEXT_STEP cannot reset single rows",
        ):
            env.reset({"reset_mask": [True, False]})


class Named(Informed):
    single_observation_space = gymnasium.spaces.Dict(
        {"step_type": gymnasium.spaces.Box(0, 1, (1,))}
    )


class Masked(Informed):
    single_action_space: Any = gymnasium.spaces.Dict({"step_mask": gymnasium.spaces.Discrete(2)})


@pytest.mark.parametrize(("kind", "name"), [(Named, "step_type"), (Masked, "step_mask")])
def test_a_vector_environment_with_a_reserved_name_is_refused(kind: Any, name: str) -> None:
    text = f"{name!r} of an environment has a name reserved for batches"
    with serve(kind) as server, pytest.raises(DmEnvRpcError, match=text):
        make(server.address)
