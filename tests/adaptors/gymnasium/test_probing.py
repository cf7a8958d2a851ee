"""Servers that are asked whether they have a Gymnasium environment, and answer anything."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from dm_env_rpc_client import ProtocolError, pack_tensor
from dm_env_rpc_client._proto import properties_pb2
from dm_env_rpc_client.adaptors.gymnasium import GymnasiumEnv, make_remote
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.testing import Response, ScriptedServer
from tests.environment.one_world import RUNNING, scripted


def describing(description: Any) -> ScriptedServer:
    """Has an environment, and answers an extension with a property."""
    response = properties_pb2.PropertyResponse()
    response.read_property.value.CopyFrom(pack_tensor(description))
    answer = Response()
    answer.extension.Pack(response)
    return scripted(answers={"extension": lambda request: answer})


def test_a_server_that_ends_the_stream_is_connected_to_again() -> None:
    with scripted(*[RUNNING] * 3, answers={"extension": None}) as server:
        with make_remote(server.address) as env:
            assert isinstance(env, GymnasiumEnv)
            assert env.reset()[0].tolist() == [1, 2]
        with contextlib.closing(RemoteVectorEnv(server.address, 2)) as envs:
            assert envs.reset()[0].tolist() == [[1, 2]] * 2


@pytest.mark.parametrize("text", ["", "{}", "[", '{"version": 2}', '{"version": 1}', "[1]"])
def test_descriptions_that_are_none_are_errors(text: str) -> None:
    with describing(text) as server:
        with pytest.raises(ProtocolError, match="property 'gymnasium'"):
            make_remote(server.address)
        with pytest.raises(ProtocolError, match="property 'gymnasium'"):
            RemoteVectorEnv(server.address, 2)
        assert server.errors == []


def test_a_property_of_the_same_name_that_is_no_text() -> None:
    with describing(3) as server, make_remote(server.address) as env:
        assert isinstance(env, GymnasiumEnv)
