"""Environments that take settings of a Reset themselves, and properties by functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client import DmEnvRpcError, make
from dm_env_rpc_client.errors import PropertyNotFoundError, PropertyPermissionError
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.server import Server, serve
from tests.server.structures.hosted import Structured, array


class Tuned(Structured):
    """Observes its settings; `size` changes its specs."""

    reset_settings = ("gain", "noise", "size")
    made = 0
    closed = 0

    def __init__(self, base: int = 0):
        super().__init__(None, {"go": specs.DiscreteArray(2)}, observe=self._told_settings)
        type(self).made += 1
        self._base, self._size = base, 1
        self._settings: dict[str, Any] = {}

    @property
    def properties(self) -> Mapping[str, Any]:
        return {"base": lambda: self._base, "size.now": lambda: np.full(self._size, 1.5)}

    def configure(self, settings: Mapping[str, Any]) -> None:
        if settings.get("gain") == -1:
            raise ValueError("a gain is positive")
        self._settings |= settings
        self._size = int(settings.get("size", self._size))

    def observation_spec(self) -> dict[str, Any]:
        return {"seen": array(self._size), "told": specs.StringArray(())}

    def _told_settings(self, step: int) -> dict[str, Any]:
        told = {name: self._settings[name] for name in sorted(self._settings)}
        return {"seen": np.full(self._size, float(self._base)), "told": str(told)}

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def server() -> Iterator[Server]:
    Tuned.made = Tuned.closed = 0
    with serve(Tuned) as server:
        yield server
    assert server.errors == []
    assert Tuned.made == Tuned.closed


def test_settings_that_an_environment_takes_do_not_make_it_anew(server: Server) -> None:
    with make(server.address) as env:
        env.reset()
        env.step({"go": 1})
        timestep = env.reset({"gain": 2, "noise": {"low": 0.5}})
        assert timestep.first()
        assert str(timestep.observation["told"]) == "{'gain': 2, 'noise': {'low': 0.5}}"
        assert Tuned.made == 1
        # They may change the specs.
        assert env.reset({"size": 3}).observation["seen"].tolist() == [0.0] * 3
        assert env.observation_spec()["seen"].shape == (3,)
        # Others make a new one, which gets those that came with them.
        timestep = env.reset({"base": 7, "gain": 1})
        assert Tuned.made == 2
        assert timestep.observation["seen"].tolist() == [7.0]
        assert str(timestep.observation["told"]) == "{'gain': 1}"


def test_refused_settings_change_nothing(server: Server) -> None:
    with make(server.address, {"base": 3}) as env:
        env.reset()
        for settings in ({"gain": -1}, {"gain": -1, "base": 4}):
            with pytest.raises(DmEnvRpcError, match="a gain is positive"):
                env.reset(settings)
            # The sequence goes on.
            assert env.step({"go": 0}).mid()
        assert env.reset().observation["seen"].tolist() == [3.0]


def test_functions_are_properties_that_can_be_read(server: Server) -> None:
    with make(server.address, {"base": 5}) as env:
        properties = PropertiesExtension(env.connection)
        assert properties["base"] == 5
        assert properties["size.now"].tolist() == [1.5]
        assert [spec.key for spec in properties.walk()] == ["base", "size", "size.now"]
        with pytest.raises(PropertyPermissionError):
            properties["base"] = 6
        with pytest.raises(PropertyNotFoundError):
            properties.read("no")
