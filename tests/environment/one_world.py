"""A scripted server of one world: the states of its steps, and answers in place of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import grpc
import numpy as np

from dm_env_rpc_client import dm_env_rpc_pb2, pack_tensor
from dm_env_rpc_client.testing import Request, Response, ScriptedServer

__all__ = ["INTERRUPTED", "RUNNING", "SPECS", "TERMINATED", "Answer", "scripted"]

RUNNING, TERMINATED, INTERRUPTED = 1, 2, 3

SPECS = dm_env_rpc_pb2.ActionObservationSpecs(
    actions={1: dm_env_rpc_pb2.TensorSpec(name="a", dtype=dm_env_rpc_pb2.INT32)},
    observations={4: dm_env_rpc_pb2.TensorSpec(name="o", dtype=dm_env_rpc_pb2.INT32, shape=[2])},
)


Answer = Callable[[Request], Response]


def scripted(*states: int, answers: Mapping[str, Answer] | None = None) -> ScriptedServer:
    """A server that steps through `states`; `answers` override requests by their kind."""
    remaining = list(states)

    def script(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        for request in requests:
            kind = str(request.WhichOneof("payload"))
            if answers and kind in answers:
                yield answers[kind](request)
            elif kind == "join_world":
                yield Response(join_world=dm_env_rpc_pb2.JoinWorldResponse(specs=SPECS))
            elif kind == "reset":
                yield Response(reset=dm_env_rpc_pb2.ResetResponse(specs=SPECS))
            elif kind == "step":
                step = dm_env_rpc_pb2.StepResponse()
                step.MergeFromString(bytes([0x08, remaining.pop(0)]))
                for uid in request.step.requested_observations:
                    step.observations[uid].CopyFrom(pack_tensor([1, 2], np.int32))
                yield Response(step=step)
            else:
                response = Response()
                getattr(response, kind).SetInParent()
                yield response

    return ScriptedServer(script)
