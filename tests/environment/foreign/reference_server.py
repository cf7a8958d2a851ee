"""A server written on the modules of PyPI's dm-env-rpc, run as a process: a peer."""

from __future__ import annotations

import concurrent.futures
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
from dm_env_rpc.v1 import (
    dm_env_rpc_pb2,
    dm_env_rpc_pb2_grpc,
    spec_manager,
    tensor_spec_utils,
)
from google.rpc import status_pb2

ACTION_FORCE, OBSERVATION_POSITION, OBSERVATION_REWARD = 1, 2, 3
STEPS = 5


def make_specs() -> Any:
    force = dm_env_rpc_pb2.TensorSpec(name="arm.force", shape=[2], dtype=dm_env_rpc_pb2.FLOAT)
    tensor_spec_utils.set_bounds(force, -1.0, 1.0)
    return dm_env_rpc_pb2.ActionObservationSpecs(
        actions={ACTION_FORCE: force},
        observations={
            OBSERVATION_POSITION: dm_env_rpc_pb2.TensorSpec(
                name="body.position", shape=[2], dtype=dm_env_rpc_pb2.DOUBLE
            ),
            OBSERVATION_REWARD: dm_env_rpc_pb2.TensorSpec(
                name="reward", dtype=dm_env_rpc_pb2.FLOAT
            ),
        },
    )


class Walk(dm_env_rpc_pb2_grpc.EnvironmentServicer):
    """A point that the force moves; a sequence terminates after STEPS steps."""

    def Process(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        specs = make_specs()
        actions = spec_manager.SpecManager(specs.actions)
        observations = spec_manager.SpecManager(specs.observations)
        position = np.zeros(2)
        steps = -1
        for request in requests:
            response = dm_env_rpc_pb2.EnvironmentResponse()
            kind = request.WhichOneof("payload")
            if kind == "create_world":
                response.create_world.world_name = "walk"
            elif kind == "join_world":
                if request.join_world.world_name != "walk":
                    response.error.CopyFrom(status_pb2.Status(code=5, message="no such world"))
                else:
                    response.join_world.specs.CopyFrom(specs)
            elif kind == "reset":
                steps = -1
                response.reset.specs.CopyFrom(specs)
            elif kind == "step":
                reward = 0.0
                if steps < 0:
                    position, steps = np.zeros(2), 0
                else:
                    force = actions.unpack(request.step.actions).get("arm.force", np.zeros(2))
                    position, steps = position + force, steps + 1
                    reward = float(np.sum(force))
                packed = observations.pack(
                    {"body.position": position, "reward": np.float32(reward)}
                )
                for uid in request.step.requested_observations:
                    response.step.observations[uid].CopyFrom(packed[uid])
                response.step.state = dm_env_rpc_pb2.EnvironmentStateType.RUNNING
                if steps == STEPS:
                    steps = -1
                    response.step.state = dm_env_rpc_pb2.EnvironmentStateType.TERMINATED
            else:
                getattr(response, kind).SetInParent()
            yield response


def start() -> tuple[grpc.Server, str]:
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    dm_env_rpc_pb2_grpc.add_EnvironmentServicer_to_server(Walk(), server)
    port = server.add_secure_port("localhost:0", grpc.local_server_credentials())
    server.start()
    return server, f"localhost:{port}"


if __name__ == "__main__":
    running, address = start()
    print(address, flush=True)
    sys.stdin.read()
    running.stop(0)
