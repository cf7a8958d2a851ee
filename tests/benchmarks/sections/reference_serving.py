"""A server of a dm_env.Environment on the modules of PyPI's dm-env-rpc, as its guide shows one."""

from __future__ import annotations

import concurrent.futures
import contextlib
import types
from collections.abc import Iterator
from typing import Any

import dm_env
import grpc
from dm_env_rpc.v1 import (
    dm_env_rpc_pb2,
    dm_env_rpc_pb2_grpc,
    dm_env_utils,
    spec_manager,
)

_ALL_SIZES = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class _Servicer(dm_env_rpc_pb2_grpc.EnvironmentServicer):
    def __init__(self, environment: dm_env.Environment):
        self._environment = environment

    def Process(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        environment = self._environment
        specs = dm_env_rpc_pb2.ActionObservationSpecs()
        for uid, (name, spec) in enumerate(environment.action_spec().items(), 1):
            specs.actions[uid].CopyFrom(dm_env_utils.dm_env_spec_to_tensor_spec(spec))
            specs.actions[uid].name = name
        for uid, (name, spec) in enumerate(environment.observation_spec().items(), 1):
            specs.observations[uid].CopyFrom(dm_env_utils.dm_env_spec_to_tensor_spec(spec))
            specs.observations[uid].name = name
        actions = spec_manager.SpecManager(specs.actions)
        observations = spec_manager.SpecManager(specs.observations)
        is_running = False
        for request in requests:
            response = dm_env_rpc_pb2.EnvironmentResponse()
            kind = request.WhichOneof("payload")
            if kind == "create_world":
                response.create_world.world_name = "only"
            elif kind == "join_world":
                response.join_world.specs.CopyFrom(specs)
            elif kind == "step":
                if is_running:
                    timestep = environment.step(actions.unpack(request.step.actions))
                else:
                    timestep, is_running = environment.reset(), True
                packed = observations.pack(timestep.observation)
                for uid in request.step.requested_observations:
                    response.step.observations[uid].CopyFrom(packed[uid])
                response.step.state = dm_env_rpc_pb2.EnvironmentStateType.RUNNING
            else:
                getattr(response, kind).SetInParent()
            yield response


@contextlib.contextmanager
def serve_reference(environment: dm_env.Environment) -> Iterator[types.SimpleNamespace]:
    """Serves an environment; gives its `address`."""
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4), options=_ALL_SIZES)
    dm_env_rpc_pb2_grpc.add_EnvironmentServicer_to_server(_Servicer(environment), server)
    port = server.add_secure_port("127.0.0.1:0", grpc.local_server_credentials())
    server.start()
    try:
        yield types.SimpleNamespace(address=f"127.0.0.1:{port}")
    finally:
        server.stop(0).wait()
