"""Creating, joining and destroying worlds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.rpc import code_pb2

from dm_env_rpc_client import (
    DmEnvRpcError,
    SpecError,
    connect,
    create_world,
    destroy_world,
    join_world,
    leave_world,
    make,
    pack_tensor,
    reset_world,
)
from dm_env_rpc_client.server import Server, serve
from tests.environments import Robot


@pytest.mark.parametrize(
    "settings",
    [
        {"joints": 2, "camera": {"height": 7}},
        {"joints": 2, "camera.height": 7},
        {"joints": np.int8(2), "camera": {"height": pack_tensor(7, np.int32)}},
    ],
)
def test_settings_are_nested_or_flat_values_or_tensors(settings: dict[str, Any]) -> None:
    with serve(Robot) as server, make(server.address, settings) as env:
        assert env.action_spec()["arm"]["torque"].shape == (2,)
        assert env.observation_spec()["camera"]["rgb"].shape == (7, 5, 3)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"rows": None}, "setting 'rows'.*NoneType"),
        ({"rows": [1, "a"]}, "setting 'rows'.*mixes"),
        ({"a": {"b": 1}, "a.b": 2}, "'a.b' is given twice"),
        ({3: 1}, "names must be strings"),
    ],
)
def test_settings_that_cannot_be_sent_are_refused_before_anything_is(
    catch_server: Server, settings: Any, text: str
) -> None:
    for arguments in [(settings, {}), ({}, settings)]:
        with pytest.raises(SpecError, match=text):
            make(catch_server.address, *arguments)
    assert catch_server.world_count == 0


def test_one_step_at_a_time(catch_server: Server) -> None:
    with connect(catch_server.address) as connection:
        first = create_world(connection, {"rows": 3})
        second = create_world(connection)
        assert first != second
        with join_world(connection, first) as env:
            assert env.reset().observation["board"].shape == (3, 5)
            with pytest.raises(DmEnvRpcError, match="leave it first") as caught:
                destroy_world(connection, first)
            assert caught.value.code == code_pb2.FAILED_PRECONDITION
            env.step({"paddle": 1})
            reset_world(connection, first)
            assert env.step({"paddle": 1}).first()
        leave_world(connection)
        reset_world(connection, second, {"rows": 6})
        with join_world(connection, second) as env:
            assert env.reset().observation["board"].shape == (6, 5)
        for name in (first, second):
            destroy_world(connection, name)
        with pytest.raises(DmEnvRpcError, match="no world") as caught:
            destroy_world(connection, first)
        assert caught.value.code == code_pb2.NOT_FOUND
