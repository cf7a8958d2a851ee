"""A correct server that knows only what every server must: one world, one agent, no Reset.

The world has the empty name and is there from the start. On the scripted server of
`testing` and the messages alone, with nothing of the other servers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from google.rpc import code_pb2, status_pb2

from dm_env_rpc_client import dm_env_rpc_pb2
from dm_env_rpc_client.testing import Request, Response, ScriptedServer

LENGTH = 4
SPECS = dm_env_rpc_pb2.ActionObservationSpecs(
    actions={7: dm_env_rpc_pb2.TensorSpec(name="move", dtype=dm_env_rpc_pb2.UINT8)},
    observations={8: dm_env_rpc_pb2.TensorSpec(name="moves", dtype=dm_env_rpc_pb2.INT32)},
)
SPECS.actions[7].max.uint8s.array = b"\x03"


class RefusalError(Exception):
    def __init__(self, message: str, code: int = code_pb2.INVALID_ARGUMENT):
        super().__init__(message)
        self.code = code


class MinimalServer(ScriptedServer):
    def __init__(self) -> None:
        super().__init__(self._serve)
        self._seat = threading.Lock()

    def _serve(self, requests: Iterator[Request], context: Any) -> Iterator[Response]:
        moves: int | None = None  # None between sequences.
        is_joined = False
        try:
            for request in requests:
                response = Response()
                field = request.WhichOneof("payload")
                try:
                    if field == "join_world":
                        self._check_join(request.join_world, is_joined)
                        is_joined, moves = True, None
                        response.join_world.specs.CopyFrom(SPECS)
                    elif field == "leave_world":
                        if is_joined:
                            self._seat.release()
                        is_joined = False
                        response.leave_world.SetInParent()
                    elif field == "step":
                        if not is_joined:
                            raise RefusalError("not joined")
                        moves = self._step(request.step, moves, response.step)
                    else:
                        raise RefusalError(f"{field} is not known here", code_pb2.UNIMPLEMENTED)
                except RefusalError as refusal:
                    status = status_pb2.Status(code=refusal.code, message=str(refusal))
                    response.error.CopyFrom(status)
                yield response
        finally:
            if is_joined:
                self._seat.release()

    def _check_join(self, request: Any, is_joined: bool) -> None:
        if request.world_name:
            raise RefusalError("the one world has no name")
        if request.settings:
            raise RefusalError("no settings")
        if is_joined or not self._seat.acquire(blocking=False):
            raise RefusalError("somebody has joined")

    def _step(self, request: Any, moves: int | None, response: Any) -> int | None:
        uids = set(request.requested_observations)
        if not uids <= {8}:
            raise RefusalError("moves has uid 8")
        if moves is None:
            moves = 0
        else:
            if set(request.actions) != {7}:
                raise RefusalError("move has uid 7")
            move = request.actions[7]
            elements = move.uint8s.array
            if move.WhichOneof("payload") != "uint8s" or move.shape or len(elements) != 1:
                raise RefusalError("move is an uint8")
            if elements[0] > 3:
                raise RefusalError("move is from 0 to 3")
            moves += 1
        for uid in uids:
            response.observations[uid].int32s.array.append(moves)
        response.state = dm_env_rpc_pb2.RUNNING
        if moves == LENGTH:
            response.state = dm_env_rpc_pb2.INTERRUPTED
            return None
        return moves
