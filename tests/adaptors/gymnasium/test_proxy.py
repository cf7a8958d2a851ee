"""A served Gymnasium environment is the same over the wire: a program sees no difference."""

from __future__ import annotations

import ctypes.util
import functools
import importlib.util
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces, wrappers
from gymnasium.utils.env_checker import check_env

from dm_env_rpc_client import DmEnvRpcError, ProtocolError, SpecError
from dm_env_rpc_client.adaptors.gymnasium import (
    GymnasiumEnv,
    GymnasiumEnvironment,
    GymnasiumProxy,
    make_remote,
    space_json,
    value_json,
)
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.server import Server, serve
from tests.adaptors.gymnasium.known import (
    ENVIRONMENTS,
    REMOTE,
    cart_pole,
    cart_poles,
    local_environment,
)
from tests.adaptors.gymnasium.proxied import SPACES, Mirror
from tests.adaptors.sameness import same
from tests.support.serving import serving


def mirror(**settings: Any) -> GymnasiumEnvironment:
    return GymnasiumEnvironment(Mirror(**settings))


mirror_server = serving(mirror)


def proxy(server: Server, render_mode: str | None = None, **settings: Any) -> GymnasiumProxy:
    env = make_remote(server.address, settings, render_mode=render_mode)
    assert isinstance(env, GymnasiumProxy)
    return env


@pytest.mark.parametrize("kind", SPACES)
def test_every_kind_of_space_and_its_elements(mirror_server: Server, kind: str) -> None:
    local = Mirror(kind)
    with proxy(mirror_server, kind=kind) as remote:
        assert (remote.action_space, remote.observation_space) == (SPACES[kind], SPACES[kind])
        assert type(remote.action_space) is type(SPACES[kind])
        assert same(remote.reset(seed=7), local.reset(seed=7))
        for seed in range(20):
            remote.action_space.seed(seed)
            local.action_space.seed(seed)
            action = remote.action_space.sample()
            assert same(action, local.action_space.sample())
            remote.reset()
            observation = remote.step(action)[0]
            assert same(observation, action)
            assert observation in SPACES[kind]


def test_a_step_outside_an_episode_is_refused(mirror_server: Server) -> None:
    with proxy(mirror_server, length=1) as remote:
        with pytest.raises(gymnasium.error.ResetNeeded):
            remote.step(remote.action_space.sample())
        remote.reset()
        remote.step(0)
        with pytest.raises(gymnasium.error.ResetNeeded):
            remote.step(0)


@pytest.mark.parametrize(
    ("kind", "near"),
    [
        ("mission", spaces.Text(4096, min_length=0, charset="".join(map(chr, range(32, 127))))),
        ("arms", spaces.Box(-(2**15), 2**15 - 1, (2,), np.int16)),
        ("half", spaces.Discrete(3)),
    ],
)
def test_a_space_of_another_kind_becomes_the_nearest_with_a_note(
    mirror_server: Server, kind: str, near: spaces.Space[Any]
) -> None:
    local = Mirror(kind)
    with proxy(mirror_server, kind=kind) as remote:
        if isinstance(near, spaces.Text):
            assert isinstance(remote.action_space, spaces.Text)
            assert near.character_set < remote.action_space.character_set
        else:
            assert remote.action_space == near
        name = type(local.action_space).__name__
        assert remote.notes[0].startswith(f"action_space is a {name}, sent as ")
        observation, _ = remote.reset(seed=1)
        assert same(observation, local.reset(seed=1)[0])
        assert observation in remote.observation_space


def test_actions_outside_their_space_are_refused(mirror_server: Server) -> None:
    with proxy(mirror_server, kind="dict") as remote:
        remote.reset()
        with pytest.raises(SpecError, match=r"'action'.*keys \['a', 'b'\]"):
            remote.step({"a": np.zeros(2, np.int8)})
        with pytest.raises(SpecError, match=r"'b'.*outside its bounds"):
            remote.step({"a": np.zeros(2, np.int8), "b": 2})
        remote.step({"a": np.zeros(2, np.int8), "b": 1})


def test_a_render_mode_that_the_server_does_not_have_is_a_warning(mirror_server: Server) -> None:
    for mode in ("depth_array", "human", "human_list", "depth_array_list"):
        with pytest.warns(UserWarning, match=f"does not render in mode '{mode}'"):
            remote = proxy(mirror_server, render_mode=mode)
        with remote:
            remote.reset()
            assert remote.render() is None
            assert remote.render_mode is None
    with (
        serve(lambda: GymnasiumEnvironment(Mirror())) as server,
        pytest.warns(UserWarning, match="unexpected keyword argument 'render_mode'"),
    ):
        proxy(server, render_mode="rgb_array").close()
    # One that renders anyhow is not made anew.
    with (
        serve(lambda: GymnasiumEnvironment(Mirror(render_mode="rgb_array"))) as server,
        proxy(server, render_mode="rgb_array") as remote,
    ):
        remote.reset()
        assert same(remote.render(), np.zeros((2, 3, 3), np.uint8))


def test_metadata_time_limits_and_reward_ranges(mirror_server: Server) -> None:
    with proxy(mirror_server) as remote:
        assert same(remote.metadata, Mirror.metadata)
        assert remote.reward_range == Mirror.reward_range
    with serve(lambda: GymnasiumEnvironment(gymnasium.make("CartPole-v1"))) as server:
        with gymnasium.make(REMOTE, address=server.address) as env:
            assert env.spec is not None
            assert env.spec.max_episode_steps == 500
            assert env.spec.id == "Remote-v0"
            assert env.metadata == gymnasium.make("CartPole-v1").metadata
        with gymnasium.make(REMOTE, address=server.address, max_episode_steps=2) as env:
            assert env.spec is not None
            assert env.spec.max_episode_steps == 2
            env.reset(seed=0)
            assert [env.step(0)[3] for _ in range(2)] == [False, True]


def test_selected_observations_are_those_of_the_specs(mirror_server: Server) -> None:
    with make_remote(mirror_server.address, {"kind": "dict"}, requested_observations=["b"]) as env:
        assert isinstance(env, GymnasiumEnv)
        env.reset(seed=1)
        assert env.observation_space == spaces.Discrete(2)


def test_errors_of_the_environment_are_told_and_the_next_reset_works(mirror_server: Server) -> None:
    with proxy(mirror_server) as remote:
        remote.reset(seed=1)
        with pytest.raises(DmEnvRpcError, match="setting 'seed'"):
            remote.environment.reset({"seed": "one"})
        with pytest.raises(DmEnvRpcError, match="setting 'options': its text: expected UTF-8 JSON"):
            remote.environment.reset({"options": "{"})
        with pytest.raises(DmEnvRpcError, match="unexpected keyword argument 'sneed'"):
            remote.environment.reset({"sneed": 1})
        remote.reset(seed=1)
        assert remote.step(1)[0] == 1


def test_a_vector_of_environments_is_no_single_one(caplog: pytest.LogCaptureFixture) -> None:
    made: list[gymnasium.vector.SyncVectorEnv] = []

    def vector() -> Any:
        made.append(gymnasium.vector.SyncVectorEnv([Mirror, Mirror]))
        return made[0]

    caplog.set_level("CRITICAL")
    with serve(vector) as server:
        with pytest.raises(SpecError, match=r"a batch of 2 rows.*use `make`"):
            make_remote(server.address)
        assert server.world_count == 0
    assert made[0].closed


@pytest.mark.parametrize(
    "value",
    [
        3,
        {"type": "Circle"},
        {"type": "Discrete", "n": 0, "start": 0, "dtype": "int64"},
        {"type": "Box", "shape": [1 << 20, 1 << 20], "dtype": "float32", "low": 0, "high": 1},
        {"type": "Box", "shape": [2], "dtype": "float32", "low": [0], "high": 1},
        {"type": "Box", "shape": [2], "dtype": "object", "low": 0, "high": 1},
        {"type": "Tuple", "spaces": [{"type": "Text"}]},
        {"type": "MultiBinary", "n": 1 << 40},
        {"type": "Sequence", "space": None, "stack": False},
    ],
)
def test_spaces_that_are_none_are_errors(value: Any) -> None:
    with pytest.raises(ProtocolError, match="it"):
        space_json.from_json(value, "it")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "\udc80",
        '{"$": "unknown"}',
        '{"$": []}',
        '{"$": "array", "dtype": "object", "shape": [1], "base64": "AAAAAAAAAAA="}',
        '{"$": "array", "dtype": "int8", "shape": [9], "base64": "AA=="}',
        '{"$": "array", "dtype": "int8", "shape": [-1], "base64": "AA=="}',
        '{"$": "graph", "items": [1]}',
        '{"$": "dict", "items": [[[], 1]]}',
        "[" * 100,
    ],
)
def test_values_that_are_none_are_errors(text: str) -> None:
    with pytest.raises(ProtocolError, match="it"):
        value_json.decode(text, "it")


def renders(name: str) -> bool:
    """Whether it can render without a screen: MuJoCo needs OSMesa for that, Atari nothing."""
    if name == "HalfCheetah-v5":
        return ctypes.util.find_library("OSMesa") is not None
    needs = {"ALE/Pong-v5": "ale_py"}.get(name, "pygame")
    return importlib.util.find_spec(needs) is not None


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_500_steps_are_those_of_the_local_environment(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for package in ENVIRONMENTS[name]:
        pytest.importorskip(package)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    mode = "rgb_array" if renders(name) else None
    # MuJoCo imports OpenGL otherwise, which may not be there.
    monkeypatch.setenv("MUJOCO_GL", "disable" if mode is None else "osmesa")
    monkeypatch.chdir(tmp_path)  # MuJoCo writes a log to where it runs.
    local = local_environment(name, render_mode=mode)
    with (
        local,
        serve(functools.partial(local_environment, name)) as server,
        gymnasium.make(REMOTE, address=server.address, render_mode=mode) as remote,
    ):
        assert remote.action_space == local.action_space
        if name.startswith("MiniGrid"):
            assert isinstance(remote.observation_space, spaces.Dict)
            assert isinstance(local.observation_space, spaces.Dict)
            found_spaces, own_spaces = dict(remote.observation_space), dict(local.observation_space)
            assert isinstance(found_spaces.pop("mission"), spaces.Text)
            del own_spaces["mission"]
            assert found_spaces == own_spaces
        else:
            assert remote.observation_space == local.observation_space
        local.action_space.seed(3)
        assert same(remote.reset(seed=5), local.reset(seed=5))
        for step in range(500):
            action = local.action_space.sample()
            found, expected = remote.step(action), local.step(action)
            assert same(found, expected), f"step {step}"
            if expected[2] or expected[3]:
                assert same(remote.reset(), local.reset())
        if mode is not None:
            assert same(remote.render(), local.render())


def noted(env: gymnasium.Env[Any, Any], **options: Any) -> list[str]:
    """What check_env warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env.unwrapped, **options)
    return [str(one.message) for one in caught]


@pytest.mark.parametrize(
    "kind", ["box", "discrete with start", "multi-discrete", "tuple", "dict", "graph"]
)
def test_check_env_says_the_same_as_of_the_local_one(mirror_server: Server, kind: str) -> None:
    local = Mirror(kind, has_odd_infos=False)
    with proxy(mirror_server, kind=kind, has_odd_infos=False) as env:
        assert noted(env, skip_render_check=True) == noted(local, skip_render_check=True)


def test_check_env_renders(mirror_server: Server) -> None:
    settings = {"has_odd_infos": False}
    with gymnasium.make(
        REMOTE, address=mirror_server.address, render_mode="rgb_array",
        create_world_settings=settings,
    ) as env:  # fmt: skip
        assert all("does not render in mode 'human'" in each for each in noted(env))


def test_make_vec_and_wrappers_of_vectors() -> None:
    local = cart_poles(2)
    with serve(cart_pole) as server:
        for mode in ("vector_entry_point", "sync"):
            envs = gymnasium.make_vec(
                REMOTE, num_envs=2, vectorization_mode=mode, address=server.address
            )
            assert envs.single_observation_space == local.single_observation_space
            pairs = [
                wrappers.vector.RecordEpisodeStatistics(
                    wrappers.vector.TransformReward(each, lambda reward: 2 * reward)
                )
                for each in (envs, local)
            ]
            assert same(pairs[0].reset(seed=1), pairs[1].reset(seed=1))
            for _ in range(20):
                found, expected = (each.step(np.zeros(2, int)) for each in pairs)
                for each in (found, expected):
                    each[4].get("episode", {}).pop("t", None)
                assert same(found, expected)
            envs.close()


def test_batches_render(mirror_server: Server) -> None:
    with RemoteVectorEnv(mirror_server.address, 3, render_mode="rgb_array") as envs:
        envs.reset()
        envs.step(np.zeros(3, int))
        frames = envs.render()
        assert frames is not None
        assert [frame.tolist() for frame in frames] == [np.ones((2, 3, 3)).tolist()] * 3
    with pytest.warns(UserWarning, match="does not render in mode 'depth'"):
        envs = RemoteVectorEnv(mirror_server.address, 2, render_mode="depth")
    with envs:
        envs.reset()
        assert envs.render() is None
