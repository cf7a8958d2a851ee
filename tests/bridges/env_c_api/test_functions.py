"""Every function of the interface is called, and what it returns or refuses is told."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from dm_env_rpc_client.bridges.env_c_api.declarations import VERSIONS, layout
from dm_env_rpc_client.errors import SpecError
from tests.bridges.env_c_api.compiling import compile_library
from tests.bridges.env_c_api.conftest import MakeEnvironment


@pytest.mark.parametrize("version", VERSIONS)
def test_every_function_of_a_version_is_called(make: MakeEnvironment, version: str) -> None:
    library = ctypes.CDLL(compile_library("complete", version))

    def calls(function: str) -> int:
        return int(library.complete_call_count(function.encode()))

    functions = layout(version).functions
    before = {name: calls(name) for name in functions}
    with pytest.raises(SpecError, match="setting 'color': 'red' is invalid: no setting 'color'"):
        make(version=version, settings={"color": "red"})
    environment = make(version=version, settings={"length": 3}, episode_seeds=7)
    environment.write_property("speed", "12")
    environment.list_properties()
    np.testing.assert_array_equal(environment.reset().observation["body"]["position"], [0, 7, 0])
    action = {"turn": {"horizontal": 2}, "jump": 1, "throttle": 1.0, "say": "ab"}
    assert environment.step(action).reward == 14.5
    assert environment.step({}).mid()
    assert environment.step({}).last()
    assert environment.read_property("violations") == "0"
    environment.close()
    not_called = [name for name in functions if calls(name) <= before[name]]
    # It is deprecated, and the same as act_discrete and act_continuous.
    assert not_called == (["act"] if version == "1.4" else [])
