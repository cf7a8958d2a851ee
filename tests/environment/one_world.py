"""A scripted server of one world: the states of its steps, and answers in place of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import grpc
import numpy as np
from google.rpc import code_pb2, status_pb2

from dm_env_rpc_client import dm_env_rpc_pb2, pack_tensor
from dm_env_rpc_client.testing import Request, Response, ScriptedServer

RUNNING, TERMINATED, INTERRUPTED = 1, 2, 3

SPECS = dm_env_rpc_pb2.ActionObservationSpecs(
    actions={1: dm_env_rpc_pb2.TensorSpec(name="a", dtype=dm_env_rpc_pb2.INT32)},
    observations={4: dm_env_rpc_pb2.TensorSpec(name="o", dtype=dm_env_rpc_pb2.INT32, shape=[2])},
)


Answer = Callable[[Request], Response]


def answer(request: Request, states: Iterator[int]) -> Response:
    """The usual answer to a request; steps have these states in turn."""
    response = Response()
    kind = str(request.WhichOneof("payload"))
    payload = getattr(response, kind)
    payload.SetInParent()
    if kind == "create_world":
        payload.world_name = "world"
    elif kind in ("join_world", "reset"):
        payload.specs.CopyFrom(SPECS)
    elif kind == "step":
        payload.MergeFromString(bytes([0x08, next(states)]))
        for uid in request.step.requested_observations:
            payload.observations[uid].CopyFrom(pack_tensor([1, 2], np.int32))
    return response


def refuse(request: Request) -> Response:
    """Refuses a request as one that the server does not know."""
    message = f"there is no {request.WhichOneof('payload')}"
    return Response(error=status_pb2.Status(code=code_pb2.UNIMPLEMENTED, message=message))


def joining(times: int) -> Answer:
    """Lets a client join so often, and refuses it then."""
    left = iter(range(times))
    return lambda request: refuse(request) if next(left, None) is None else answer(request, left)


def stepping(observations: Mapping[int, dm_env_rpc_pb2.Tensor]) -> Answer:
    """Answers steps with these observations, whatever was requested."""
    step = dm_env_rpc_pb2.StepResponse(state="RUNNING", observations=observations)
    return lambda request: Response(step=step)


def scripted(*states: int, answers: Mapping[str, Answer | None] | None = None) -> ScriptedServer:
    """A server of one world.

    Args:
      *states: of its steps in turn.
      answers: in place of the usual ones, by the kind of the request; None ends the stream.
    """
    remaining, others = iter(states), answers or {}

    def script(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        for request in requests:
            kind = str(request.WhichOneof("payload"))
            if kind not in others:
                yield answer(request, remaining)
            elif (other := others[kind]) is None:
                return
            else:
                yield other(request)

    return ScriptedServer(script)
