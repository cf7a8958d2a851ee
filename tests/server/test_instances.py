"""Environments that exist already: one world at a time of that very one, in one thread."""

from __future__ import annotations

import logging
import threading
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client import (
    BatchedEnvironment,
    DmEnvRpcError,
    EnvironmentsFailedError,
    SpecError,
    connect,
    create_and_join_world,
    create_world,
    make,
    reset_world,
)
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.server import Race, serve
from tests.server.hosted import Where
from tests.server.one_thread import Level
from tests.support.scripted import settles


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"size": 3}, "setting 'size'.*an instance of Level.*takes 'gain'.*pass a factory to"),
        ({"size.x": 3}, "setting 'size'"),
        ({"num_envs": 2}, "setting 'num_envs' is 2: this server hosts one.*pass a factory to"),
        ({"num_envs": 1, "rows.size": [3]}, "setting 'size'"),
        ({"num_envs": 0}, "a batch has 1 to"),
    ],
)
def test_settings_of_a_world_are_refused(settings: dict[str, Any], text: str) -> None:
    level = Level()
    with serve(level) as server:
        with pytest.raises(DmEnvRpcError, match=text):
            make(server.address, settings)
        with make(server.address) as env:
            assert env.reset().first()
        assert level.threads.closed == 0
    assert server.errors == []


def test_settings_of_a_reset_are_those_of_the_environment_alone() -> None:
    with (
        serve(Level()) as server,
        make(server.address) as env,
        connect(server.address) as other,
    ):
        with pytest.raises(
            DmEnvRpcError, match=r"setting 'size'.*a Reset by its agent takes 'gain'"
        ):
            env.reset({"size": 3, "gain": 2})
        with pytest.raises(
            DmEnvRpcError, match=r"setting 'gain'.*a Reset by its agent takes 'gain'"
        ):
            reset_world(other, "world-1", {"gain": 2})
        assert env.reset().first()
        assert env.step({"go": 1}).reward == 1.0


def test_a_batch_of_one_row() -> None:
    level = Level()
    with serve(level) as server:
        with make(server.address, {"num_envs": 1}) as env:
            assert env.reset().observation["steps"].tolist() == [0]
            assert env.step({"go": np.array([1])}).observation["steps"].tolist() == [1]
        assert level.threads.closed == 0
        with BatchedEnvironment(server.address, 1) as envs:
            assert envs.reset().observation["steps"].tolist() == [1]
        with pytest.raises(EnvironmentsFailedError, match=r"'num_envs' is 3: .*pass a factory to"):
            BatchedEnvironment(server.address, 3)
        assert server.world_count == 0
    level.threads.the_one("step", "close")


def test_a_batch_that_cannot_be_made_leaves_it_open() -> None:
    level = Level()
    level.observation_spec = lambda: {"step_type": specs.Array((), np.int64)}  # type: ignore[method-assign]
    with serve(level) as server:
        with pytest.raises(DmEnvRpcError, match="'step_type'"):
            make(server.address, {"num_envs": 1})
        assert (level.threads.closed, server.world_count) == (0, 0)
    assert level.threads.closed == 1


# The end.


def test_a_close_that_raises_is_an_error_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    level = Level()
    level.raises_in_close = True
    server = serve(level)
    assert not server.stop()
    (error,) = server.errors
    assert str(error) == "cannot be closed"


def test_a_server_that_cannot_listen_leaves_it_open_and_no_thread() -> None:
    level = Level()
    with serve(Where) as server, pytest.raises(OSError, match="cannot listen"):
        serve(level, server.address)
    assert level.threads.closed == 0
    (one,) = level.threads.seen["action_spec"]
    assert settles(lambda: one not in [thread.ident for thread in threading.enumerate()])
    with serve(level) as server, make(server.address) as env:
        assert env.reset().first()


class Delegating:
    """A wrapper, as others write them: what it does not have, is that of its environment."""

    def __init__(self, environment: dm_env.Environment):
        self._environment = environment

    def __getattr__(self, name: str) -> Any:
        if name == "_environment":
            raise AttributeError(name)
        return getattr(self._environment, name)


@pytest.mark.parametrize("is_instance", [True, False])
def test_settings_and_properties_of_a_wrapped_environment(is_instance: bool) -> None:
    def make_wrapped() -> Any:
        return Delegating(Level(check_same_thread=is_instance))

    served: Any = make_wrapped() if is_instance else make_wrapped
    with serve(served) as server, make(server.address) as env:
        assert env.reset({"gain": 4}).first()
        assert env.step({"go": 1}).reward == 4.0
        assert PropertiesExtension(env.connection)["steps"] == 1


def test_a_dict_has_instances_beside_factories() -> None:
    one, other = Level(), Level()
    with serve({"one": one, "other": other, "where": Where}) as server:
        with connect(server.address) as first, connect(server.address) as second:
            env, _ = create_and_join_world(first, {"environment": "one"}, {})
            create_world(second, {"environment": "other"})
            for _ in range(2):
                create_world(second, {"environment": "where"})
            with pytest.raises(DmEnvRpcError, match="an instance of Level"):
                create_world(second, {"environment": "one"})
            assert env.reset().first()
        assert one.threads.seen["action_spec"] != other.threads.seen["action_spec"]
        assert server.stop()
    assert (one.threads.closed, other.threads.closed) == (1, 1)
    with pytest.raises(SpecError, match="environment 'race' is an existing Race"):
        serve({"race": Race()})
