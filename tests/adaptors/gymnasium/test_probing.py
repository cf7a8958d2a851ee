"""Servers that are asked whether they have a Gymnasium environment, and answer anything."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from dm_env import specs as dm_env_specs
from google.protobuf import any_pb2

from dm_env_rpc_client import ProtocolError
from dm_env_rpc_client import dm_env_rpc_pb2 as pb
from dm_env_rpc_client._proto import properties_pb2
from dm_env_rpc_client.adaptors.gymnasium import GymnasiumEnv, make_remote
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.tensors import packing, specs
from dm_env_rpc_client.testing import ScriptedServer

Answer = pb.EnvironmentResponse


def _spec(spec: dm_env_specs.Array, name: str) -> pb.TensorSpec:
    made = specs.dm_env_spec_to_tensor_spec(spec)
    made.name = name
    return made


SPECS = pb.ActionObservationSpecs(
    actions={1: _spec(dm_env_specs.DiscreteArray(2), "go")},
    observations={1: _spec(dm_env_specs.DiscreteArray(5), "seen")},
)


def script(description: Any) -> Any:
    """Plays an environment, and answers an extension with a property; None ends the stream."""

    def run(requests: Iterable[pb.EnvironmentRequest], _: Any) -> Iterator[Answer]:
        for request in requests:
            answer = Answer()
            field = request.WhichOneof("payload")
            if field == "extension":
                if description is None:
                    return
                response = properties_pb2.PropertyResponse()
                response.read_property.value.CopyFrom(packing.pack_tensor(description))
                packed = any_pb2.Any()
                packed.Pack(response)
                answer.extension.CopyFrom(packed)
            elif field == "step":
                answer.step.state = pb.RUNNING
                answer.step.observations[1].CopyFrom(packing.pack_tensor(3, "int32"))
            else:
                assert field is not None
                getattr(answer, field).SetInParent()
            if field == "create_world":
                answer.create_world.world_name = "world"
            if field == "join_world":
                answer.join_world.specs.CopyFrom(SPECS)
            yield answer

    return run


def test_a_server_that_ends_the_stream_is_connected_to_again() -> None:
    with ScriptedServer(script(None)) as server:
        with make_remote(server.address) as env:
            assert isinstance(env, GymnasiumEnv)
            assert env.reset()[0] == 3
        with contextlib.closing(RemoteVectorEnv(server.address, 2)) as envs:
            assert envs.reset()[0].tolist() == [3, 3]


@pytest.mark.parametrize("text", ["", "{}", "[", '{"version": 2}', '{"version": 1}', "[1]"])
def test_descriptions_that_are_none_are_errors(text: str) -> None:
    with ScriptedServer(script(text)) as server:
        with pytest.raises(ProtocolError, match="property 'gymnasium'"):
            make_remote(server.address)
        with pytest.raises(ProtocolError, match="property 'gymnasium'"):
            RemoteVectorEnv(server.address, 2)
        assert server.errors == []


def test_a_property_of_the_same_name_that_is_no_text() -> None:
    with ScriptedServer(script(3)) as server, make_remote(server.address) as env:
        assert isinstance(env, GymnasiumEnv)
