"""Episodes in Minari are those of the recording."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.errors import RecordingError
from dm_env_rpc_client.recording import read
from dm_env_rpc_client.server import Catch, serve
from tests.constraints import ROOT
from tests.recording.sessions import play


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


class Informing(gymnasium.Env[Any, Any]):
    """Observes its action, ends after three steps and has infos."""

    action_space = spaces.Discrete(3)
    observation_space: spaces.Space[Any] = spaces.Box(0.0, 9.0, (2,), np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._count = 0
        return self._observed(0), {"seed": seed, "text": "begun"}

    def step(self, action: Any) -> Any:
        self._count += 1
        both = self._count == 3
        return self._observed(action), 1.0, both, both, {"count": self._count}

    def _observed(self, value: Any) -> Any:
        return np.full(2, value, np.float64)


class InformingParts(Informing):
    """Observes two parts."""

    observation_space = spaces.Dict({"a": Informing.observation_space, "b": spaces.Discrete(9)})

    def _observed(self, value: Any) -> Any:
        return {"a": super()._observed(value), "b": int(value)}


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
    pettingzoo = pytest.importorskip("pettingzoo")

    from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv

    class Two(pettingzoo.ParallelEnv):  # type: ignore[name-defined]
        metadata: dict[str, Any] = {"name": "two_v0", "render_modes": []}  # noqa: RUF012
        possible_agents = agents = ["a", "b"]  # noqa: RUF012

        def observation_space(self, agent: Any) -> Any:
            return spaces.Discrete(9)

        action_space = observation_space

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            return dict.fromkeys(self.agents, 0), {agent: {"seed": seed} for agent in self.agents}

        def step(self, actions: Any) -> Any:
            no = dict.fromkeys(self.agents, False)
            return actions, dict.fromkeys(self.agents, 1.0), no, no, {each: {} for each in no}

    with (
        serve(Two) as server,
        contextlib.closing(RemoteParallelEnv(server.address, record=path)) as env,
    ):
        env.reset(seed=1)
        env.step({"a": 5, "b": 5})
    assert export_minari(path, "agents/run-v0") == 2
    for exported in minari.load_dataset("agents/run-v0").iterate_episodes():
        assert exported.observations.tolist() == [0, 5]


def test_minari_needs_no_pettingzoo() -> None:
    pytest.importorskip("minari")
    program = (
        "import sys; sys.modules['pettingzoo'] = None; import dm_env_rpc_client.adaptors.minari"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
