"""Environments of dm_control, bsuite and PettingZoo that are served by their names."""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dm_env_rpc_client
from dm_env_rpc_client import SpecError, connect
from dm_env_rpc_client.cli.failures import UsageError
from dm_env_rpc_client.cli.serving.sources import try_source
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.server import serve
from dm_env_rpc_client.system.sources import find_source

ours = functools.partial(dm_env_rpc_client.make, unwrap_single=True)


def _dm_control() -> Any:
    suite = pytest.importorskip("dm_control.suite")
    return suite.load("cartpole", "swingup", task_kwargs={"random": 1})


def _bsuite() -> Any:
    return pytest.importorskip("bsuite").load_from_id("deep_sea/0")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("reference", "load", "settings", "action"),
    [
        ("dm_control://cartpole/swingup", _dm_control, {"task_kwargs": {"random": 1}}, np.ones(1)),
        ("bsuite://deep_sea/0", _bsuite, {}, 1),
    ],
)
def test_an_environment_of_a_library_is_served_by_its_name(
    reference: str,
    load: Callable[[], Any],
    settings: dict[str, Any],
    action: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes a log to where it runs.
    local = load()
    source = find_source(reference, insecure=False)
    assert source.name == reference.partition("://")[2]
    with serve(source.factory) as server, ours(server.address, settings) as env:
        np.testing.assert_equal(env.reset(), local.reset())
        for _ in range(30):
            np.testing.assert_equal(env.step(action), local.step(action))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["rps_v2", "rps-v2", "tictactoe_v3"])
def test_pettingzoo_with_its_own_names(name: str) -> None:
    source = find_source(f"pettingzoo://classic/{name}", insecure=False)
    assert source.name == f"classic/{name}"
    try_source(source, {}, "it")
    with serve(source.factory) as server, connect(server.address) as connection:
        world = dm_env_rpc_client.create_world(connection)
        with dm_env_rpc_client.join_world(connection, world) as env:
            properties = PropertiesExtension(connection)
            assert len(json.loads(str(properties["pettingzoo"]))["agents"]) == 2
            assert env.action_spec()["action"].dtype == np.int64


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        ("classic/rpz_v2", {}, "cannot make it: NameNotFound: .* 'classic/rps-v2'"),
        ("clasic/rps_v2", {}, "NamespaceNotFound: Namespace 'clasic' not found"),
        ("classic/rps_v9", {}, "Available version: v2"),
        ("classic/rps_v2", {"players": 3}, "unexpected keyword argument 'players'"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_pettingzoo_does_not_have(name: str, settings: dict[str, Any], text: str) -> None:
    source = find_source(f"pettingzoo://{name}", insecure=False)
    with pytest.raises(UsageError, match=text):
        try_source(source, settings, "it")


@pytest.mark.parametrize(
    ("reference", "needed"),
    [
        ("dm_control://cartpole/swingup", "package: pip install dm-control"),
        ("bsuite://catch/0", "package: pip install bsuite"),
    ],
)
def test_what_to_install(reference: str, needed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match=f"requires the {needed}"):
        find_source(reference, insecure=False)


@pytest.mark.parametrize("reference", ["dm_control://cartpole", "dm_control:///swingup"])
def test_names_that_are_none(reference: str) -> None:
    pytest.importorskip("dm_control")
    with pytest.raises(SpecError, match="dm_control://DOMAIN/TASK"):
        find_source(reference, insecure=False)
