"""A small engine, a program of its own whose server is written with grpcio by hand.

    python -m tests.environment.foreign.stub_engine PORT

It prints the name of each request that it gets, and "stream ended" after each stream.
"""

from __future__ import annotations

import concurrent.futures
import signal
import sys
from collections.abc import Iterable, Iterator

import grpc
import numpy as np
from google.rpc import code_pb2, status_pb2

from dm_env_rpc_client import (
    dm_env_rpc_pb2,
    dm_env_rpc_pb2_grpc,
    pack_tensor,
    properties_pb2,
    unpack_tensor,
)

Request = dm_env_rpc_pb2.EnvironmentRequest
Response = dm_env_rpc_pb2.EnvironmentResponse

LENGTH = 7
SPECS = dm_env_rpc_pb2.ActionObservationSpecs(
    actions={
        1: dm_env_rpc_pb2.TensorSpec(name="MOVE", dtype=dm_env_rpc_pb2.INT32),
        2: dm_env_rpc_pb2.TensorSpec(name="LOOK.X", dtype=dm_env_rpc_pb2.FLOAT, shape=[2]),
    },
    observations={
        1: dm_env_rpc_pb2.TensorSpec(
            name="RGB_INTERLEAVED", dtype=dm_env_rpc_pb2.UINT8, shape=[4, 4, 3]
        ),
        2: dm_env_rpc_pb2.TensorSpec(name="reward", dtype=dm_env_rpc_pb2.DOUBLE),
        3: dm_env_rpc_pb2.TensorSpec(name="AvatarPosition", dtype=dm_env_rpc_pb2.FLOAT, shape=[3]),
        4: dm_env_rpc_pb2.TensorSpec(name="text", dtype=dm_env_rpc_pb2.STRING),
    },
)


class RefusedError(Exception):
    """A request is answered with an error Status."""


class Engine(dm_env_rpc_pb2_grpc.EnvironmentServicer):
    """One world per stream."""

    def Process(  # noqa: N802
        self, request_iterator: Iterable[Request], context: grpc.ServicerContext
    ) -> Iterator[Response]:
        level = Level()
        try:
            for request in request_iterator:
                payload = str(request.WhichOneof("payload"))
                print(payload, flush=True)
                response = Response()
                try:
                    getattr(level, payload)(getattr(request, payload), response)
                except RefusedError as error:
                    status = status_pb2.Status(
                        code=code_pb2.FAILED_PRECONDITION, message=str(error)
                    )
                    response = Response(error=status)
                yield response
        finally:
            print("stream ended", flush=True)


class Level:
    """Answers the requests of one stream."""

    def __init__(self) -> None:
        self.seed = 0
        self.joined = False
        self.time_scale = 1.0
        self.steps = -1

    def create_world(self, request: dm_env_rpc_pb2.CreateWorldRequest, response: Response) -> None:
        self.seed = int(unpack_tensor(request.settings["seed"]))
        response.create_world.world_name = f"level {self.seed}"

    def join_world(self, request: dm_env_rpc_pb2.JoinWorldRequest, response: Response) -> None:
        if unpack_tensor(request.settings["agent_name"]) == "nobody":
            raise RefusedError("there is no such agent")
        self.joined = True
        response.join_world.specs.CopyFrom(SPECS)

    def reset(self, request: dm_env_rpc_pb2.ResetRequest, response: Response) -> None:
        if not self.joined:
            raise RefusedError("join a world first")
        self.steps = -1
        response.reset.specs.CopyFrom(SPECS)

    def step(self, request: dm_env_rpc_pb2.StepRequest, response: Response) -> None:
        move = unpack_tensor(request.actions[1]) if 1 in request.actions else 0
        look = unpack_tensor(request.actions[2]) if 2 in request.actions else np.zeros(2)
        self.steps += 1
        is_last = self.steps == LENGTH
        values = {
            1: np.full((4, 4, 3), (self.seed + self.steps) % 256, np.uint8),
            2: np.float64(move * self.time_scale),
            3: np.array([self.steps, *look], np.float32),
            4: f"step {self.steps}",
        }
        for uid in request.requested_observations:
            response.step.observations[uid].CopyFrom(pack_tensor(values[uid]))
        response.step.state = dm_env_rpc_pb2.TERMINATED if is_last else dm_env_rpc_pb2.RUNNING
        if is_last:
            self.steps = -1

    def leave_world(self, request: dm_env_rpc_pb2.LeaveWorldRequest, response: Response) -> None:
        self.joined = False
        response.leave_world.SetInParent()

    def destroy_world(
        self, request: dm_env_rpc_pb2.DestroyWorldRequest, response: Response
    ) -> None:
        response.destroy_world.SetInParent()

    def extension(self, packed: object, response: Response) -> None:
        request, answer = properties_pb2.PropertyRequest(), properties_pb2.PropertyResponse()
        assert packed.Unpack(request)  # type: ignore[attr-defined]
        if request.HasField("read_property"):
            answer.read_property.value.CopyFrom(pack_tensor(self.time_scale))
        else:
            self.time_scale = float(unpack_tensor(request.write_property.value))
            answer.write_property.SetInParent()
        response.extension.Pack(answer)


def main() -> None:
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    dm_env_rpc_pb2_grpc.add_EnvironmentServicer_to_server(Engine(), server)
    server.add_secure_port(f"localhost:{sys.argv[1]}", grpc.local_server_credentials())
    server.start()
    signal.sigwait({signal.SIGTERM})
    server.stop(None).wait()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    main()
