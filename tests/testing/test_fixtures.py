"""What the plugin's fixtures do, without a pytest run around each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from dm_env_rpc_client import (
    ConnectionLostError,
    DmEnvRpcError,
    dm_env_rpc_pb2,
    make,
)
from dm_env_rpc_client.compliance import CHECKS, Options, Suite, test_compliance
from dm_env_rpc_client.server import Catch, Server
from dm_env_rpc_client.testing import ScriptedServer, answering, fixtures, pytest_plugin
from tests.environments import Broken


class RecordingParser:
    """Takes the plugin's options and answers for a config that has them."""

    def __init__(self, **given: Any):
        self._values: dict[str, Any] = {}
        self._given = {name.replace("_", "-"): value for name, value in given.items()}
        pytest_plugin.pytest_addoption(self)  # type: ignore[arg-type]

    def getgroup(self, name: str, description: str) -> RecordingParser:
        assert name == "dm_env_rpc"
        assert description
        return self

    def addoption(self, name: str, **details: Any) -> None:
        assert details["help"].endswith(".")
        is_flag = details.get("action") == "store_true"
        default = False if is_flag else details.get("default")
        self._values[name] = self._given.get(name.removeprefix("--dm-env-rpc-"), default)

    def getoption(self, name: str) -> Any:
        return self._values[name]


def config(**given: Any) -> Any:
    return RecordingParser(**given)


def test_an_address_is_taken_as_it_is() -> None:
    with fixtures.address(config(address="localhost:1")) as address:
        assert address == "localhost:1"


def test_a_command_is_started_and_stopped() -> None:
    command = f"{sys.executable} -m dm_env_rpc_client serve catch --address localhost:{{port}}"
    with fixtures.address(config(command=command)) as address, make(address) as env:
        assert env.reset().first()
    with pytest.raises(ConnectionLostError):
        make(address, timeout=0.2)


@pytest.mark.parametrize("given", [{}, {"address": "localhost:1", "command": "x"}])
def test_there_is_one_server(given: dict[str, str]) -> None:
    with (
        pytest.raises(pytest.UsageError, match="one of the two"),
        fixtures.address(config(**given)),
    ):
        pass


def test_hosting(dm_env_rpc_server: Callable[..., Server]) -> None:
    for rows in (3, 4):
        with make(dm_env_rpc_server(Catch).address, {"rows": rows}) as env:
            assert env.observation_spec()["board"].shape == (rows, 5)


def test_what_fails_in_a_server_is_raised() -> None:
    def fail() -> None:
        with (
            fixtures.servers() as serve,
            make(serve(Broken).address, {"at": "reset"}) as env,
            pytest.raises(DmEnvRpcError, match="broken in reset"),
        ):
            env.reset()

    with pytest.raises(RuntimeError, match="broken in reset"):
        fail()


def test_a_connection_and_an_environment(catch_server: Server) -> None:
    with fixtures.connection(catch_server.address, config(timeout=3.0)) as connection:
        created = connection.send(dm_env_rpc_pb2.CreateWorldRequest())
        name = created.world_name
        joining = config(world=name)
        with fixtures.environment(catch_server.address, joining) as env:
            assert env.reset().first()
    with fixtures.environment(catch_server.address, config(create=["rows=4"])) as env:
        assert env.observation_spec()["board"].shape == (4, 5)
    assert catch_server.world_count == 1


def test_options_of_the_suite() -> None:
    assert fixtures.compliance_options(config()) == Options()
    given = config(
        create=["rows=3"],
        required_create=["rows"],
        invalid_join=["a=x"],
        several_worlds="yes",
        several_agents="no",
        world="w",
        timeout=2.0,
    )
    assert fixtures.compliance_options(given) == Options(
        create_settings={"rows": 3},
        required_create_settings=("rows",),
        invalid_join_settings={"a": "x"},
        several_worlds=True,
        several_agents=False,
        world_name="w",
        timeout=2.0,
    )
    for wrong in ({"policy": "x"}, {"create": ["x"]}, {"several_worlds": "maybe"}):
        with pytest.raises(pytest.UsageError):
            fixtures.compliance_options(config(**wrong))


def check(name: str) -> Any:
    (found,) = [check for check in CHECKS if check.name == name]
    return found


def test_a_check_as_a_test(catch_server: Server) -> None:
    def as_test(name: str, address: str, timeout: float = 2.0) -> None:
        test_compliance.test_compliance(check(name), address, Options(timeout=timeout), suites)

    suites: dict[str, Suite] = {}
    as_test("a_world_can_be_joined", catch_server.address)
    with pytest.raises(pytest.skip.Exception, match="no reset settings"):
        as_test("reset_settings_are_taken", catch_server.address)
    ended = pytest.raises(pytest.fail.Exception, match="received: the end of the stream")
    with ScriptedServer(answering()) as server:
        # What blocks the check is reported by its test; later ones are skipped.
        with ended:
            as_test("leaving_while_not_joined_is_a_no_op", server.address)
        with pytest.raises(pytest.skip.Exception, match="nothing can be checked"):
            as_test("a_step_may_be_empty", server.address)
    with pytest.raises(pytest.fail.Exception, match="expected: a connection"):
        as_test("a_world_can_be_joined", "localhost:1", 0.2)
