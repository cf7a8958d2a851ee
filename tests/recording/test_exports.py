"""Episodes in Minari are those of the recording."""

from __future__ import annotations

import contextlib
import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from dm_env import specs
from google.protobuf import any_pb2
from gymnasium import spaces

from dm_env_rpc_client import dm_env_rpc_pb2, pack_tensor
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.errors import RecordingError, SpecError
from dm_env_rpc_client.recording import Recorder, read
from dm_env_rpc_client.server import Catch, serve
from dm_env_rpc_client.tensors.spec_manager import TensorField
from dm_env_rpc_client.tensors.specs import (
    VariableArray,
    VariableBoundedArray,
    VariableStringArray,
    named_tensor_spec,
)
from tests.cli.commands import invoke
from tests.constraints import ROOT
from tests.recording.sessions import play, record, recorded
from tests.support.environments import Constant
from tests.travelling.environments.usual import Usual


def test_minari_has_the_episodes(path: Path, export_minari: Callable[..., int]) -> None:
    minari = pytest.importorskip("minari")

    with serve(Catch) as server:
        play(server.address, 12, record=path)
    assert export_minari(path, "catch/run-v0") == 3
    dataset = minari.load_dataset("catch/run-v0")
    for exported, episode in zip(dataset.iterate_episodes(), read(path).episodes, strict=True):
        timesteps = episode.timesteps
        np.testing.assert_array_equal(exported.observations, timesteps.observation["board"])
        np.testing.assert_array_equal(exported.actions, episode.actions["paddle"])
        np.testing.assert_array_equal(exported.rewards, timesteps.reward[1:])
        is_terminated = episode.end == "terminated"
        assert list(exported.terminations)[-1] == is_terminated
        assert list(exported.truncations)[-1] != is_terminated
    with pytest.raises(RecordingError, match="cannot export to Minari"):
        export_minari(path, "catch/run-v0")


class Informing(Usual):
    """Observes its action."""

    observation_space: spaces.Space[Any] = spaces.Box(0.0, 9.0, (2,), np.float64)

    def __init__(self) -> None:
        super().__init__(0)

    def observe(self) -> Any:
        return np.full(2, self.action if self.steps else 0, np.float64)

    def inform(self) -> Any:
        return {**super().inform(), "text": "told"}


class InformingParts(Informing):
    """Observes two parts."""

    observation_space = spaces.Dict({"a": Informing.observation_space, "b": spaces.Discrete(9)})

    def observe(self) -> Any:
        return {"a": super().observe(), "b": int(self.action) if self.steps else 0}


@pytest.mark.parametrize("environment", [Informing, InformingParts])
@pytest.mark.parametrize("num_batches", [None, 0, 1])
def test_minari_has_the_episodes_of_gymnasium_environments(
    environment: type[Informing],
    num_batches: int | None,
    path: Path,
    export_minari: Callable[..., int],
) -> None:
    minari = pytest.importorskip("minari")

    actions = [1, 2, 0, 2]
    with serve(environment) as server:
        if num_batches is None:
            one = gymnasium.make(
                "dm_env_rpc_client.gymnasium:Remote-v0", address=server.address, record=path
            )
            with one:
                one.reset(seed=3)
                assert [one.step(action)[4]["count"] for action in actions[:3]] == [1, 2, 3]
        else:
            with RemoteVectorEnv(server.address, 2, num_batches=num_batches, record=path) as envs:
                envs.reset(seed=3)
                for action in actions:
                    envs.step(np.full(2, action))
    count = 1 if num_batches is None else 2
    export_minari(path, "informing/run-v0")
    dataset = minari.load_dataset("informing/run-v0")
    episodes = [each for each in dataset.iterate_episodes() if len(each) == 3]
    assert len(episodes) == count
    for exported in episodes:
        observed = exported.observations
        if environment is InformingParts:
            assert observed["observation.b"].tolist() == [0, *actions[:3]]
            observed = observed["observation.a"]
        np.testing.assert_array_equal(observed, [[each] * 2 for each in [0, *actions[:3]]])
        assert exported.actions.tolist() == actions[:3]
        assert exported.terminations.tolist() == [False, False, True]


def test_minari_has_the_episodes_of_agents_of_pettingzoo(
    path: Path, export_minari: Callable[..., int]
) -> None:
    minari = pytest.importorskip("minari")
    pytest.importorskip("pettingzoo")

    from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv
    from tests.travelling.environments.of_agents import Agents

    with (
        serve(Agents) as server,
        contextlib.closing(RemoteParallelEnv(server.address, record=path)) as env,
    ):
        env.reset(seed=1)
        env.step({"a": 1, "b": 1})
    assert export_minari(path, "agents/run-v0") == 2
    for exported in minari.load_dataset("agents/run-v0").iterate_episodes():
        assert exported.observations["observation.a"].tolist() == [0, 1]


def test_minari_needs_no_pettingzoo() -> None:
    pytest.importorskip("minari")
    program = (
        "import sys; sys.modules['pettingzoo'] = None; import dm_env_rpc_client.adaptors.minari"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


F4, F8 = np.float32, np.float64
LIMITS = np.finfo(F8)


class Odd(NamedTuple):
    """A spec, a value of it, and what becomes of both.

    Attributes:
      spec: of an observation or an action.
      value: of it.
      minari: what the error of Minari says; "" if it has the value.
    """

    spec: specs.Array
    value: Any
    minari: str = ""


NONE = "an array without elements"
LENGTH = "of variable length"
TEXT = "Minari has no type of space for it"

ODD: dict[str, Odd] = {
    "no elements": Odd(specs.Array((0,), F4), np.empty(0, F4), NONE),
    "no rows": Odd(specs.Array((0, 3), F4), np.empty((0, 3), F4), NONE),
    "bounds of no elements": Odd(
        specs.BoundedArray((0,), np.int32, -1, 1), np.empty(0, np.int32), NONE
    ),
    "no texts": Odd(specs.StringArray((0,)), np.empty(0, object), NONE),
    "any length": Odd(VariableArray((-1,), F4), np.ones(3, F4), LENGTH),
    "any length with bounds": Odd(VariableBoundedArray((-1, 2), F8, 0, 2), np.ones((3, 2)), LENGTH),
    "any number of texts": Odd(VariableStringArray((-1,)), np.array(["a"], object), LENGTH),
    "a text": Odd(specs.StringArray(()), "a", TEXT),
    "texts": Odd(specs.StringArray((2,)), np.array(["a", "é"], object), TEXT),
    "a message": Odd(specs.Array((), object), any_pb2.Any(), TEXT),
    "messages": Odd(
        specs.Array((2,), object),
        np.array([any_pb2.Any(), any_pb2.Any()], object),
        TEXT,
    ),
    "a flag": Odd(specs.Array((), bool), np.bool_(True)),
    "int8": Odd(specs.DiscreteArray(5, np.int8), np.int8(3)),
    "int64": Odd(specs.Array((), np.int64), np.int64(-(2**63))),
    "int64s": Odd(specs.Array((2,), np.int64), np.array([2**63 - 1, -(2**63)])),
    "uint64": Odd(specs.BoundedArray((), np.uint64, 0, 2**64 - 1), np.uint64(2**64 - 1)),
    "uint64s": Odd(specs.Array((2,), np.uint64), np.array([2**64 - 1, 0], np.uint64)),
    "infinite bounds": Odd(
        specs.BoundedArray((2,), F8, -np.inf, np.inf), np.array([LIMITS.max, LIMITS.min])
    ),
    "bounds of the dtype": Odd(
        specs.BoundedArray((2,), F8, LIMITS.min, LIMITS.max), np.array([LIMITS.max, LIMITS.min])
    ),
    "a float": Odd(specs.Array((), F8), F8(0.1)),
    "a bounded float": Odd(specs.BoundedArray((), F4, 0, 1), F4(0.1)),
    "an image": Odd(
        specs.BoundedArray((4, 3, 3), np.uint8, 0, 255),
        np.arange(36, dtype=np.uint8).reshape(4, 3, 3),
    ),
    "many dimensions": Odd(specs.Array((1,) * 32, F4), np.ones((1,) * 32, F4)),
}


def left(folder: Path) -> list[str]:
    """What is in a folder, without files of namespaces that were there."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def recorded_twice(
    path: Path, odd: Odd, place: str = "observation", reward: Any = 1.0, name: str = "y"
) -> None:
    """Records two episodes of one step, with a value as an action or an observation.

    Args:
      reward: of any kind, since strangers may write it.
      name: of the other one.
    """
    request, answer = dm_env_rpc_pb2.EnvironmentRequest, dm_env_rpc_pb2.EnvironmentResponse
    own, other = (
        ({1: spec}, {1: TensorField(1, spec, "value").pack(value)})
        for spec, value in (
            (named_tensor_spec(odd.spec, "x"), odd.value),
            (named_tensor_spec(specs.DiscreteArray(3), name), 1),
        )
    )
    observations, actions = (own, other) if place == "observation" else (other, own)
    paid = pack_tensor(reward)
    dtype = str(paid.WhichOneof("payload"))[:-1].upper()
    rewards = {2: dm_env_rpc_pb2.TensorSpec(name="reward", dtype=dtype, shape=paid.shape)}
    made = {"observations": {**observations[0], **rewards}, "actions": actions[0]}
    observed = {**observations[1], 2: paid}
    begin = (
        request(step={}),
        answer(step={"state": dm_env_rpc_pb2.RUNNING, "observations": observed}),
    )
    end = (
        request(step={"actions": actions[1]}),
        answer(step={"state": dm_env_rpc_pb2.TERMINATED, "observations": observed}),
    )
    exchanges = [
        (request(create_world={}), answer(create_world={"world_name": "w"})),
        (request(join_world={}), answer(join_world={"specs": made})),
        *(begin, end, begin, end),
    ]
    record(path, *((sent.SerializeToString(), got.SerializeToString()) for sent, got in exchanges))


@pytest.mark.parametrize("place", ["observation", "action"])
@pytest.mark.parametrize("name", ODD)
def test_values_of_every_kind(
    name: str, place: str, path: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """They are read and shown, and exported or refused by Minari."""
    odd = ODD[name]
    # An action may have the name of the reward.
    recorded_twice(path, odd, place, name="reward" if place == "observation" else "y")
    for episode in read(path).episodes:
        assert repr(episode).endswith("1 steps, return 1.0, terminated>")
        stacked = episode.actions["x"] if place == "action" else episode.timesteps.observation["x"]
        np.testing.assert_array_equal(stacked[-1], odd.value)
    minari = pytest.importorskip("minari")
    export_minari = request.getfixturevalue("export_minari")
    if odd.minari:
        with pytest.raises(RecordingError, match=f"{place} 'x' is .*{odd.minari}"):
            export_minari(path, "odd/value-v0")
        assert left(tmp_path / "data") == []
        return
    assert export_minari(path, "odd/value-v0") == 2
    for exported in minari.load_dataset("odd/value-v0").iterate_episodes():
        found = (exported.observations if place == "observation" else exported.actions)[-1]
        np.testing.assert_array_equal(found, odd.value)


def test_actions_of_different_lengths_are_an_error_that_names_them(path: Path) -> None:
    actions = {"x": VariableArray((-1,), F4)}
    with recorded(path, lambda: Constant({"o": specs.DiscreteArray(2)}, actions=actions)) as env:
        env.reset()
        env.step({"x": np.ones(2, F4)})
    (episode,) = read(path).episodes
    assert episode.actions["x"].shape == (1, 2)
    episode.flat_actions.append({"x": np.ones(3, F4)})
    with pytest.raises(SpecError, match=r"action 'x'.*shapes \[2\] and \[3\].*flat_actions"):
        _ = episode.actions


@pytest.mark.parametrize(
    ("reward", "found"),
    [
        ("one", r"<U3 and shape \[\]"),
        (np.ones(2), r"float64 and shape \[2\]"),
        (np.empty(0), r"float64 and shape \[0\]"),
    ],
    ids=["a text", "two", "none"],
)
def test_rewards_that_are_no_numbers(
    reward: Any, found: str, path: Path, export_minari: Callable[..., int], tmp_path: Path
) -> None:
    recorded_twice(path, ODD["a float"], reward=reward)
    with pytest.raises(RecordingError, match=f"the rewards of episode 1 have .*{found}.*numbers"):
        export_minari(path, "reward-v0")
    assert left(tmp_path / "data") == []
    assert invoke("inspect", str(path)).stderr == ""


def test_a_recording_without_episodes_or_with_first_steps_alone(
    path: Path, export_minari: Callable[..., int], tmp_path: Path
) -> None:
    Recorder(path).close()
    with pytest.raises(RecordingError, match="has no episodes"):
        export_minari(path, "none/none-v0")
    single = path.with_name("single.mcap")
    with recorded(single, lambda: Constant({"o": specs.DiscreteArray(2)})) as env:
        env.reset()
    with pytest.raises(RecordingError, match="has no episodes"):
        export_minari(single, "none/none-v0")
    idle = path.with_name("idle.mcap")
    with recorded(idle, lambda: Constant({"o": specs.DiscreteArray(2)})) as env:
        env.reset()
        env.step({})
    with pytest.raises(RecordingError, match="has no actions"):
        export_minari(idle, "none/none-v0")
    assert left(tmp_path / "data") == []


@pytest.mark.parametrize("dataset_id", ["no version", "../up-v0", "a//b-v0", "-v0"])
def test_ids_that_minari_does_not_take(
    dataset_id: str, path: Path, export_minari: Callable[..., int], tmp_path: Path
) -> None:
    recorded_twice(path, ODD["a float"], "observation")
    before = left(tmp_path)
    with pytest.raises(RecordingError, match="cannot export to Minari"):
        export_minari(path, dataset_id)
    assert [name for name in left(tmp_path) if name != "data"] == before


def test_a_disk_that_is_full_leaves_no_part_of_a_data_set(
    path: Path,
    export_minari: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from minari.dataset.minari_storage import MinariStorage

    recorded_twice(path, ODD["a float"], "observation")

    def be_full(*args: Any, **kwargs: Any) -> None:
        assert left(tmp_path / "data")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(MinariStorage, "update_metadata", be_full)
    with pytest.raises(RecordingError, match=r"OSError.*No space left"):
        export_minari(path, "of/many/names-v0")
    assert left(tmp_path / "data") == []


def test_an_interrupt_leaves_nothing(
    path: Path, export_minari: Callable[..., int], tmp_path: Path
) -> None:
    recorded_twice(path, ODD["a float"], "observation")

    def interrupt(episode: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_minari(path, "odd/value-v0", on_episode=interrupt)
    assert left(tmp_path / "data") == []
