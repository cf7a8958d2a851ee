"""What each wrapper does, over a real server."""

from __future__ import annotations

from typing import Any

import dm_env
import numpy as np
import pytest
import tree
from dm_env import specs
from hypothesis import given
from hypothesis import strategies as st

from dm_env_rpc_client import BatchedEnvironment, SpecError, make
from dm_env_rpc_client.adaptors.wrappers import (
    ActionRepeat,
    ActionScale,
    FloatCast,
    ObservationStack,
)
from dm_env_rpc_client.server import Catch, Server, serve


class TestActionRepeat:
    def test_rewards_and_discounts(self, server: Server) -> None:
        settings = {"environment": "Walker", "length": 7, "end": 0.25}
        with ActionRepeat(make(server.address, settings), 3) as env:
            assert env.reset().observation["position"]["step"] == 0
            action = env.action_spec()
            action = tree.map_structure(lambda spec: spec.generate_value(), action)
            action["legs"]["right"] = np.float32(0.5)
            found = env.step(action)
            assert found.mid()
            assert found.observation["position"]["step"] == 3
            # Each reward counts by the discounts before it, and the discounts are multiplied.
            assert found.reward == pytest.approx(0.6 + 0.9 * 0.7 + 0.81 * 0.8)
            assert found.discount == pytest.approx(0.9**3)
            env.step(action)
            last = env.step(action)  # The seventh step is the last one.
            assert last.last()
            assert last.reward == pytest.approx(1.2)
            assert last.discount == 0.25
            first = env.step(action)
            assert first.first()
            assert first.observation["position"]["step"] == 0
            assert env.step(action).observation["position"]["step"] == 3

    def test_with_discounts_of_one_rewards_are_summed(self, server: Server) -> None:
        with ActionRepeat(make(server.address, {"environment": "Catch"}), 20) as env:
            assert env.reset().first()
            timestep = env.step({"paddle": 1})
            assert timestep.last()
            assert abs(timestep.reward) == 1
            assert timestep.discount == 0

    def test_integer_rewards_become_floats(self, server: Server) -> None:
        with ActionRepeat(make(server.address, {"environment": "Arm"}), 2) as env:
            env.reset()
            assert env.reward_spec() == specs.Array((3,), np.float64)
            assert env.step({"action": np.ones(3)}).reward.tolist() == [2, 3.5, 5]

    def test_bounds(self, server: Server) -> None:
        with make(server.address, {"environment": "Walker"}) as walker:
            env = ActionRepeat(walker, 4)
            reward, discount = env.reward_spec(), env.discount_spec()
        assert (reward.minimum, reward.maximum, reward.dtype) == (-4, 8, np.float32)
        assert (discount.minimum, discount.maximum) == (0, 0.9)

    def test_steps_ahead_of_their_answers_are_refused(self, server: Server) -> None:
        settings = {"environment": "Catch"}
        with ActionRepeat(BatchedEnvironment(server.address, 2, settings), 2) as envs:
            envs.reset()
            with pytest.raises(SpecError, match="use step"):
                envs.send({"paddle": np.ones(2, int)})
            with pytest.raises(SpecError, match="use step"):
                envs.recv()

    def test_lists_and_texts_are_actions_of_a_batch(self, server: Server) -> None:
        settings = [{"environment": "Walker", "length": length} for length in (1, 3)]
        with ActionRepeat(BatchedEnvironment(server.address, 2, settings), 2) as envs:
            envs.reset()
            found = envs.step(
                {
                    "legs.left": [[0, 0], [1, 0.1]],
                    "legs": {"right": [0.5, 0.25], "speed": [0.0, 1.0]},
                    "gear": [0, 1],
                    "say": ["a", "b"],
                }
            )
            assert found.observation["said"].tolist() == ["a", "b"]
            assert found.observation["position"]["step"].tolist() == [1, 2]


class TestObservationStack:
    def test_the_newest_is_at_the_end(self, server: Server) -> None:
        settings = {"environment": "Walker", "length": 4, "start": 10}
        with ObservationStack(make(server.address, settings), 3) as env:
            action = tree.map_structure(lambda spec: spec.generate_value(), env.action_spec())

            def steps(timestep: dm_env.TimeStep) -> list[int]:
                camera, position = timestep.observation["camera"], timestep.observation["position"]
                assert camera.shape == (2, 3, 3)
                assert camera[0, 0].tolist() == position["step"].tolist()
                return camera[1, 2].tolist()  # type: ignore[no-any-return]

            assert steps(env.reset()) == [10, 10, 10]
            assert steps(env.step(action)) == [10, 10, 11]
            assert steps(env.step({**action, "say": "hello"})) == [10, 11, 12]
            last = [env.step({**action, "say": "you"}) for _ in range(2)][1]
            assert (last.last(), steps(last)) == (True, [12, 13, 14])
            assert last.observation["said"].tolist() == ["hello", "you", "you"]
            assert steps(env.step(action)) == [10, 10, 10]

    def test_specs(self, server: Server) -> None:
        with make(server.address, {"environment": "Walker"}) as walker:
            found = ObservationStack(walker, 4).observation_spec()
        assert found["camera"] == specs.BoundedArray((2, 3, 4), np.uint8, 0, 255, "camera")
        assert found["said"] == specs.StringArray((4,), name="said")
        bounds = found["position"]["x"]
        assert (bounds.shape, bounds.minimum.tolist()) == ((2, 4), [[-2], [0]])
        assert type(found["position"]["step"]) is specs.BoundedArray

    def test_what_was_returned_is_the_callers(self, server: Server) -> None:
        with ObservationStack(make(server.address, {"environment": "Arm"}), 2) as env:
            first = env.reset().observation["observation"]
            first[...] = 9
            second = env.step({"action": np.ones(3)}).observation["observation"]
            assert second.tolist() == [[0, 1]] * 3
            assert first.tolist() == [[9, 9]] * 3

    @pytest.mark.parametrize(
        ("kwargs", "text"),
        [
            ({"count": 0}, "count must be an integer from 1 on, got 0"),
            ({"names": ["lidar*"]}, r"no observation matches 'lidar\*'; observations: \['camera"),
            ({"names": "camera"}, "a list of names"),
        ],
    )
    def test_arguments(self, server: Server, kwargs: dict[str, Any], text: str) -> None:
        with (
            make(server.address, {"environment": "Walker"}) as env,
            pytest.raises(SpecError, match=text),
        ):
            ObservationStack(env, **kwargs)


class TestFloatCast:
    def test_specs_and_values(self, server: Server) -> None:
        with FloatCast(make(server.address, {"environment": "Walker"})) as env:
            left = env.action_spec()["legs"]["left"]
            # float32(0.1) is more than 0.1, which the environment would refuse.
            assert (left.dtype, left.maximum[0]) == (np.float32, 4)
            assert 0.0999999 < left.maximum[1] < 0.1
            assert env.action_spec()["legs"]["speed"].dtype == np.float32
            assert env.action_spec()["gear"].dtype == np.int32
            x = env.observation_spec()["position"]["x"]
            assert (x.dtype, x.maximum.tolist()) == (np.float32, [4, np.inf])
            env.reset()
            action = {"legs": {"left": left.maximum, "right": 0.5, "speed": np.float32(1)}}
            timestep = env.step({**action, "gear": 1, "say": ""})
            assert timestep.observation["position"]["x"].dtype == np.float32
            assert (timestep.reward.dtype, timestep.discount.dtype) == (np.float32, np.float32)

    def test_other_precisions(self, server: Server) -> None:
        with make(server.address, {"environment": "Walker"}) as walker:
            assert FloatCast(walker, np.float64).reward_spec().dtype == np.float64
            with pytest.raises(SpecError, match="got int32"):
                FloatCast(walker, np.int32)
            env = FloatCast(walker, np.float16)
            timestep = env.reset()
            env.observation_spec()["position"]["x"].validate(timestep.observation["position"]["x"])

    def test_wrong_values_are_the_environments_to_refuse(self, server: Server) -> None:
        with FloatCast(make(server.address, {"environment": "Walker"})) as env:
            env.reset()
            with pytest.raises(SpecError, match=r"action 'legs.left' \(uid .*outside its bounds"):
                env.step({"legs": {"left": np.array([0, 0.1], np.float32)}})
            with pytest.raises(SpecError, match=r"action 'legs.left': expected float64, got str"):
                env.step({"legs": {"left": ["a", "b"]}})
            with pytest.raises(SpecError, match=r"did you mean 'legs\.left'"):
                env.step({"legs.lefd": np.zeros(2)})


class TestActionScale:
    def test_specs(self, server: Server) -> None:
        with make(server.address, {"environment": "Walker"}) as walker:
            own, scaled = walker.action_spec(), ActionScale(walker).action_spec()
            left, right = scaled["legs"]["left"], scaled["legs"]["right"]
            assert left == specs.BoundedArray((2,), np.float64, -1, 1, "legs.left")
            assert right == specs.BoundedArray((), np.float32, -1, 1, "legs.right")
            for name in ("gear", "say"):
                assert scaled[name] == own[name]
            assert scaled["legs"]["speed"] == own["legs"]["speed"]

    @pytest.mark.parametrize("how", [{}, {"nested_tensors": False}])
    def test_bounds_are_exact_and_the_middle_is_the_middle(
        self, server: Server, how: dict[str, Any]
    ) -> None:
        with ActionScale(make(server.address, {"environment": "Walker"}, **how)) as env:
            env.reset()
            others = {"legs.right": 1.0, "legs.speed": 0.5, "gear": 0, "say": ""}
            for value, expected in (
                ([-1, -1], [-2, 0.25]), ([1, 1], [4, 0.1 + 0.25]), ([0, 0], [1, 0.05 + 0.25]),
            ):  # fmt: skip
                observation = env.step({"legs.left": value, **others}).observation
                x = observation["position"]["x"] if not how else observation["position.x"]
                assert x.tolist() == expected

    def test_other_scales(self, server: Server) -> None:
        with make(server.address, {"environment": "Arm"}, unwrap_single=True) as arm:
            env = ActionScale(arm, [0, 0, -1], 10)
            env.reset()
            assert env.step([5, 10, -1]).observation.tolist() == [0, 5, -5]

    def test_actions_out_of_bounds(self, server: Server) -> None:
        settings = {"environment": "Arm"}
        with make(server.address, settings, unwrap_single=True) as arm:
            env = ActionScale(arm)
            env.reset()
            for value in (1.5, np.nan, -np.inf):
                with pytest.raises(SpecError, match=rf"the action is {value}, outside its bounds"):
                    env.step([0, value, 0])
            assert arm.step(np.ones(3)).reward.tolist() == [1, 2, 3], "nothing was sent before"
            clipped = ActionScale(arm, clip=True)
            assert clipped.step([2, -np.inf, 0.5]).observation.tolist() == [5, -5, 2.5]
            with pytest.raises(SpecError, match="nan"):
                clipped.step([0, np.nan, 0])

    @pytest.mark.parametrize(
        ("action", "text"),
        [
            ({"legs": {"left": [0.0]}}, r"'legs.left' has shape \[1\], expected \[2\]"),
            ({"legs": {"left": 0.0}}, r"'legs.left' has shape \[\], expected \[2\]"),
            ({"legs": {"left": {"a": 1}}}, "'legs.left' is one array, got a mapping"),
            ({"legs": {"lefd": [0.0, 0]}}, "did you mean 'legs.left'"),
            ({"legs.left": ["a", "b"]}, "'legs.left': expected float64, got str"),
        ],
    )
    def test_actions_of_another_form(
        self, server: Server, action: dict[str, Any], text: str
    ) -> None:
        with ActionScale(make(server.address, {"environment": "Walker"})) as env:
            env.reset()
            with pytest.raises(SpecError, match=text):
                env.step(action)

    @pytest.mark.parametrize(
        ("spec", "kwargs", "text"),
        [
            (specs.DiscreteArray(3), {}, "no action has bounds and is of floats"),
            (specs.Array((2,), np.float32), {}, "no action has bounds"),
            (specs.BoundedArray((), np.float64, 0, np.inf), {}, "'a' cannot be scaled.*finite"),
            (specs.BoundedArray((2,), float, 0, 1), {"minimum": 1}, "the minimum is less"),
            (specs.BoundedArray((2,), float, 0, 1), {"maximum": np.nan}, "finite bounds"),
            (specs.BoundedArray((2,), float, 0, 1), {"maximum": [1, 2, 3]}, r"'a' has shape \[2\]"),
        ],
    )
    def test_what_cannot_be_scaled(
        self, spec: specs.Array, kwargs: dict[str, Any], text: str
    ) -> None:
        class Other(Catch):
            def action_spec(self) -> dict[str, specs.Array]:
                return {"a": spec}

        with pytest.raises(SpecError, match=text):
            ActionScale(Other(), **kwargs)

    @given(
        st.floats(-1e3, 1e3, width=32), st.floats(0, 1e6, width=32),
        st.lists(st.floats(-1, 1), min_size=2, max_size=5), st.sampled_from([np.float32, float]),
    )  # fmt: skip
    def test_scaled_actions_are_within_the_bounds_and_in_order(
        self, low: float, range_: float, actions: list[float], dtype: Any
    ) -> None:
        taken: list[Any] = []

        class Other(Catch):
            def action_spec(self) -> Any:
                return specs.BoundedArray((), dtype, low, dtype(low) + dtype(range_))

            def step(self, action: Any) -> dm_env.TimeStep:
                self.action_spec().validate(action)
                taken.append(action)
                return self.reset()

        env = ActionScale(Other())
        for action in (*sorted(actions), -1, 1):
            env.step(action)
        assert taken[:-2] == sorted(taken[:-2])
        spec = env.environment.action_spec()
        assert taken[-2:] == [spec.minimum, spec.maximum]

    @pytest.mark.filterwarnings("ignore")
    def test_it_is_dm_controls(self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)  # MuJoCo writes a log to where it runs.
        suite = pytest.importorskip("dm_control.suite")
        from dm_control.suite.wrappers import action_scale

        def reacher() -> dm_env.Environment:
            return suite.load("reacher", "easy", {"random": 1})

        local = action_scale.Wrapper(reacher(), -3.0, 2.0)
        random = np.random.default_rng(0)
        with (
            serve(reacher) as server,
            ActionScale(make(server.address, unwrap_single=True), -3.0, 2.0) as env,
        ):
            assert env.action_spec().minimum == local.action_spec().minimum
            env.reset()
            local.reset()
            for _ in range(100):
                action = random.uniform(-3, 2, 2)
                found, expected = env.step(action), local.step(action)
                assert found.reward == expected.reward
                for name, value in expected.observation.items():
                    np.testing.assert_allclose(found.observation[name], value, atol=1e-12)
