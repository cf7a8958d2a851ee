"""Simulators whose batches are tensors: what they take, lack and tell."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client import BatchedEnvironment, DmEnvRpcError, SpecError, make
from dm_env_rpc_client.adaptors.gymnasium.dict_vector_env import DictVectorEnv
from dm_env_rpc_client.adaptors.gymnasium.vector_to_dm_env import GymnasiumVectorEnvironment
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.server import serve
from dm_env_rpc_client.system import foreign_environments
from dm_env_rpc_client.tensors import array_kinds
from tests.adaptors.gymnasium import simulators
from tests.adaptors.gymnasium.simulators import ROWS
from tests.adaptors.sameness import same


@pytest.mark.parametrize("library", ["torch", "jax"])
@pytest.mark.parametrize("transport", ["http2", "grpc"])
def test_actions_that_an_environment_keeps_are_not_rewritten(library: str, transport: Any) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed")
    kept: list[Any] = []

    class Keeping(Single):
        def step(self, action: Any) -> Any:
            kept.append(action["move"])
            return super().step(action)

    sent = np.random.default_rng(0).uniform(-1, 1, (20, 2)).astype(np.float32)
    with (
        serve(functools.partial(Keeping, library), transport=transport) as server,
        make(server.address, transport=transport) as env,
    ):
        env.reset()
        for action in sent:
            env.step({"move": action})
    np.testing.assert_array_equal(np.stack([np.asarray(each) for each in kept]), sent)


def test_final_observations_have_two_names() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    for make_env in (functools.partial(simulators.IsaacLab, final=True), simulators.ManiSkill):
        with serve(make_env, autoreset_mode="SAME_STEP") as server:
            envs = DictVectorEnv(server.address)
            try:
                envs.reset_each([1] * ROWS, None, [{}] * ROWS)
                finals = 0
                for _ in range(20):
                    *_, infos = envs.step_each(np.zeros((ROWS, 2), np.float32), [{}] * ROWS)
                    finals += sum("terminal_observation" in info for info in infos)
                assert finals > ROWS
            finally:
                envs.close()


class Single(gymnasium.Env[Any, Any]):
    """One environment whose values are those of a library, or that says nothing of it."""

    action_space = spaces.Dict({"move": spaces.Box(-1, 1, (2,), np.float32)})
    observation_space = spaces.Dict({"a": spaces.Box(-9, 9, (2,), np.float32)})
    seen: list[Any] = []  # noqa: RUF012

    def __init__(self, library: str = "torch", observes: str = "mapping"):
        self._xp: Any = importlib.import_module({"jax": "jax.numpy"}.get(library, library))
        self._observes = observes

    def _observed(self, value: Any) -> Any:
        own = value if self._observes == "numpy" else self._xp.asarray(value)
        return {"named": Named, "dataclass": Data}.get(self._observes, lambda a: {"a": a})(own)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._observed(np.zeros(2, np.float32)), {"at": self._xp.ones(2)}

    def step(self, action: Any) -> Any:
        self.seen.append(type(action["move"]))
        own = self._observed(np.ones(2, np.float32))
        return own, self._xp.asarray(0.5), self._xp.asarray(False), False, {"at": self._xp.ones(1)}


class Named(NamedTuple):
    a: Any


@dataclasses.dataclass(frozen=True)
class Data:
    a: Any


@pytest.mark.parametrize("observes", ["mapping", "named", "dataclass", "numpy"])
@pytest.mark.parametrize("library", ["torch", "jax"])
def test_single_environments_get_their_own_arrays(library: str, observes: str) -> None:
    own: Any = pytest.importorskip(library, reason=f"{library} is not installed")
    array = own.Tensor if library == "torch" else own.Array
    arrays: Any = library if observes == "numpy" else "auto"
    Single.seen.clear()
    action = {"move": np.ones(2, np.float32)}
    with serve(functools.partial(Single, library, observes), arrays=arrays) as server:
        with make(server.address) as env:
            env.reset()
            timestep = env.step({"move": action["move"]})
            assert same(timestep.observation, {"a": np.ones(2, np.float32)})
            assert timestep.reward == 0.5
        remote = gymnasium.make("dm_env_rpc_client.gymnasium:Remote-v0", address=server.address)
        _, info = remote.reset()
        assert same(info, {"at": np.ones(2, np.float32)})
        assert same(remote.step(action)[-1], {"at": np.ones(1, np.float32)})
        remote.close()
        with BatchedEnvironment(server.address, 3) as envs:
            envs.reset()
            envs.step({"move": np.ones((3, 2), np.float32)})
        assert not server.errors
    assert len(Single.seen) == 5
    assert all(issubclass(each, array) for each in Single.seen)


def test_numpy_is_given_where_that_is_asked() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    Single.seen.clear()
    with serve(Single, arrays="numpy") as server, make(server.address) as env:
        env.reset()
        env.step({"move": np.ones(2, np.float32)})
    assert Single.seen == [np.ndarray]


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    factory = functools.partial(Single, "numpy", "numpy")
    with (
        serve(factory, arrays="jax") as server,
        make(server.address) as env,
        pytest.raises(DmEnvRpcError, match="cannot import jax"),
    ):
        env.reset()
    with pytest.raises(SpecError, match="unknown arrays 'cupy'; choose one of 'auto'"):
        serve(factory, arrays="cupy")  # type: ignore[arg-type]


def test_what_a_batch_of_its_own_class_lacks_is_said_once() -> None:
    with pytest.raises(TypeError, match=r"Genesis has no action_space and no observation_space"):
        serve(simulators.Genesis()).stop()  # type: ignore[arg-type]
    with serve(simulators.Genesis) as server:
        with pytest.raises(DmEnvRpcError, match="Genesis has no action_space") as caught:
            make(server.address)
        assert "close" not in str(caught.value)


def test_a_batch_that_takes_no_seed_says_so() -> None:
    class Unseeded(Rows):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset()[0]

    with serve(Unseeded) as server, make(server.address) as env:
        env.reset()
        with pytest.raises(
            DmEnvRpcError, match="setting 'seed': `reset` of Unseeded accepts no seed"
        ):
            env.reset({"seed": 3})


class Rows(gymnasium.Env[Any, Any]):
    """A batch of NumPy that describes the spaces of all rows only, and returns four values."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    num_envs = 2
    action_space = spaces.Tuple((spaces.MultiDiscrete([3, 3], start=[1, 1]),))
    observation_space = spaces.Dict({"a": spaces.Box(-1, 1, (2, 4)), "b": spaces.Box(0, 1, (2,))})
    outs: Any = None

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._observed(), {}

    def step(self, action: Any) -> Any:
        done = np.array([1.0, 0.0], np.float32)
        return self._observed(), np.ones((2, 1), np.float32), done, self.outs or {}

    def _observed(self) -> Any:
        return {"a": np.zeros((2, 4), np.float32), "b": np.zeros(2, np.float32)}


def test_spaces_of_one_row_follow_from_those_of_all() -> None:
    with serve(Rows) as server:
        envs = RemoteVectorEnv(server.address)
        assert envs.single_action_space == spaces.Tuple((spaces.Discrete(3, start=1),))
        assert envs.single_observation_space == spaces.Dict(
            {"a": spaces.Box(-1, 1, (4,)), "b": spaces.Box(0, 1, ())}
        )
        envs.close()


def test_spaces_that_differ_between_rows_are_refused() -> None:
    class Odd(Rows):
        action_space = spaces.Tuple((spaces.MultiDiscrete([3, 4]),))

    text = "differs between rows; set the environment's single_action"
    with serve(Odd) as server, pytest.raises(DmEnvRpcError, match=text):
        make(server.address)


@pytest.mark.parametrize("name", ["time_outs", "TimeLimit.truncated", "truncation"])
def test_four_values_tell_truncations_by_their_infos(name: str) -> None:
    class Told(Rows):
        outs = {name: np.array([1.0, 1.0])}  # noqa: RUF012

    for factory, ended in ((Rows, (True, False)), (Told, (False, True))):
        with serve(factory) as server:
            envs = RemoteVectorEnv(server.address)
            envs.reset()
            _, _, terminated, truncated, _ = envs.step((np.ones(2, int),))
            assert (terminated[0], truncated[0]) == ended
            assert not terminated[1]
            assert not truncated[1]
            envs.close()


class Telling(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Rows whose infos have large arrays."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    num_envs = 512
    single_action_space = spaces.Discrete(2)
    single_observation_space = spaces.Box(-1, 1, (4,), np.float32)
    infos = {  # noqa: RUF012
        "final_obs": np.random.default_rng(0).normal(size=(num_envs, 4)).astype(np.float32),
        "_final_obs": np.ones(num_envs, bool),
        "big-endian": np.arange(num_envs, dtype=">f8"),
        "deep": {"counts": np.arange(2 * num_envs).reshape(num_envs, 2), "few": np.arange(3)},
        "complex": np.full(num_envs, 1j),
        "log": 0.5,
    }

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((self.num_envs, 4), np.float32), {}

    def step(self, actions: Any) -> Any:
        none = np.zeros(self.num_envs, bool)
        return self.reset()[0], np.zeros(self.num_envs), none, none, self.infos


def test_large_arrays_of_infos_travel_as_bytes() -> None:
    with serve(Telling) as server:
        envs = RemoteVectorEnv(server.address)
        try:
            envs.reset()
            assert same(envs.step(np.zeros(Telling.num_envs, int))[-1], Telling.infos)
        finally:
            envs.close()
        with make(server.address) as env:
            observation = env.reset({"infos": "blocks"}).observation
            assert observation["info_arrays"].size == 0
            step = env.step({"action": np.zeros(Telling.num_envs, int)}).observation
            # Four float32, one float64 and two int64 in each row; complex numbers stay in the text.
            assert step["info_arrays"].size == (16 + 8 + 16) * Telling.num_envs
            assert len(step["gymnasium"]) < 20_000


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_masks_and_options_are_of_the_same_kind(library: str) -> None:
    own: Any = pytest.importorskip(library, reason=f"{library} is not installed")
    array = own.Tensor if library == "torch" else own.Array
    taken: list[Any] = []

    class Masked(Rows):
        metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            taken.append((seed, options))
            kind = array_kinds.named(library)
            return array_kinds.from_numpy(super().reset()[0], kind, ""), {}

    with serve(Masked) as server, make(server.address) as env:
        env.reset()
        env.reset({"seed": [3, 4], "reset_mask": [False, True], "options": '{"level": 2}'})
    assert taken[0] == (None, None)
    seed, options = taken[1]
    assert seed == 4
    assert type(seed) is int
    assert options["level"] == 2
    assert isinstance(options["reset_mask"], array)
    assert np.asarray(options["reset_mask"]).tolist() == [False, True]


@pytest.mark.parametrize(
    ("attributes", "is_batch"),
    [
        ({"num_envs": 2}, True),
        ({"_num_envs": 2}, True),
        ({"num_envs": np.int64(2)}, True),
        ({"num_envs": 3}, False),  # Spaces of one row, as those of another library's batches.
        ({"num_envs": "2"}, False),
        ({}, False),
    ],
)
def test_what_is_a_batch(attributes: dict[str, Any], is_batch: bool) -> None:
    names = ("action_space", "observation_space", "reset", "step", "metadata", "_observed")
    members = {name: vars(Rows)[name] for name in names}
    made = type("Made", (gymnasium.Env,), {**members, **attributes, "outs": None})()
    found = foreign_environments.converted(made)
    assert isinstance(found, GymnasiumVectorEnvironment) == is_batch
