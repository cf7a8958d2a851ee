"""Environments whose server is launched for them, and ends with them."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from dm_env_rpc_client import BatchedEnvironment, LaunchError, make, make_async
from dm_env_rpc_client.environment.server_location import launched
from dm_env_rpc_client.launch import Launch, from_process
from tests.launch.processes import AT_PORT, ECHO, supervisors
from tests.support.scripted import settles


@pytest.fixture(autouse=True)
def _all_end() -> Any:
    before = set(supervisors())
    yield
    assert settles(lambda: set(supervisors()) <= before, 20)


@pytest.mark.parametrize(
    "make",
    [make, lambda *given, **how: asyncio.run(make_async(*given, **how)), BatchedEnvironment],
    ids=["threads", "asyncio", "batch"],
)
def test_the_timeout_holds_for_a_server_that_is_launched(make: Any) -> None:
    with pytest.raises(LaunchError, match=r"did not answer at localhost:\d+ within 0.3 s"):
        make("process:sleep 100 {port}", timeout=0.3)


def test_settings_that_the_constructor_refuses_end_the_server() -> None:
    with pytest.raises(Exception, match="unexpected keyword argument"):
        make(ECHO, {"colour": "red"})


@pytest.mark.parametrize(("addresses", "count"), [(ECHO, 1), ([ECHO], 1), ([ECHO, ECHO], 2)])
def test_a_batch_has_one_server_or_one_for_each_in_a_list(addresses: Any, count: int) -> None:
    envs = BatchedEnvironment(addresses, 4)
    assert len(supervisors()) == count
    envs.reset()
    timestep = envs.step({"value": np.arange(4)})
    assert timestep.observation["value"].tolist() == [0, 1, 2, 3]
    envs.close()
    assert supervisors() == []


def test_a_batch_of_which_one_is_not_started() -> None:
    with pytest.raises(LaunchError, match="No module named 'no_such_module'"):
        BatchedEnvironment([ECHO, "python:no_such_module:Env"])


def test_an_address_for_other_clients() -> None:
    with launched(ECHO) as address, make(address) as env:
        assert env.reset().first()
    with launched("localhost:1") as address:
        assert address == "localhost:1"


def test_a_launch_of_the_users_own_has_no_other_owner() -> None:
    with from_process(AT_PORT) as launch:
        assert isinstance(launch, Launch)
        with make(launch.address) as env:
            env.reset()
        assert launch.is_running
