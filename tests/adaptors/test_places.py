"""A name that somebody imports from the module of another library says where it is."""

from __future__ import annotations

import importlib

import pytest

PLACES = {
    "GymnasiumEnv": "adaptors.gymnasium",
    "GymnasiumEnvironment": "adaptors.gymnasium",
    "RemoteVectorEnv": "adaptors.gymnasium",
    "make_remote": "adaptors.gymnasium",
    "RemoteParallelEnv": "adaptors.pettingzoo",
    "RemoteSb3VecEnv": "adaptors.sb3",
}
"""The modules that the guides name."""

ALSO = {("adaptors.vector", "RemoteVectorEnv")}
"""Names that another module has, too."""

MODULES = (
    "gymnasium",
    "adaptors",
    "adaptors.gymnasium",
    "adaptors.vector",
    "adaptors.pettingzoo",
    "adaptors.sb3",
)

NEEDED = {"adaptors.pettingzoo": "pettingzoo", "adaptors.sb3": "stable_baselines3"}


def imported(module: str, name: str) -> object:
    found: dict[str, object] = {}
    exec(f"from {module} import {name}", found)
    return found[name]


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("module", MODULES)
def test_a_name_is_in_one_place_and_the_others_say_where(module: str, name: str) -> None:
    if module in NEEDED:
        pytest.importorskip(NEEDED[module])
    whole = f"dm_env_rpc_client.{module}"
    if PLACES[name] == module or (module, name) in ALSO:
        assert getattr(imported(whole, name), "__name__", "") == name
        return
    place = f"dm_env_rpc_client.{PLACES[name]}"
    expected = f"cannot import name '{name}' from '{whole}'; import it from '{place}'"
    with pytest.raises(ImportError) as caught:
        imported(whole, name)
    assert str(caught.value) == expected
    with pytest.raises(ImportError, match="import it from"):
        getattr(importlib.import_module(whole), name)


@pytest.mark.parametrize("module", MODULES)
def test_other_names_are_unknown_as_everywhere(module: str) -> None:
    if module in NEEDED:
        pytest.importorskip(NEEDED[module])
    whole = importlib.import_module(f"dm_env_rpc_client.{module}")
    assert not hasattr(whole, "RemoteVectorEnvs")
    with pytest.raises(AttributeError, match="RemoteVectorEnvs"):
        whole.RemoteVectorEnvs  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'RemoteVectorEnvs'"):
        imported(whole.__name__, "RemoteVectorEnvs")
