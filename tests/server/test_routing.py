"""Which worker answers a request of a stream, when one has just ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dm_env_rpc_client import dm_env_rpc_pb2
from dm_env_rpc_client.server.processes.forwarding import WorkerGoneError
from dm_env_rpc_client.server.processes.routing import RoutedStream
from dm_env_rpc_client.tensors.limits import Limits

MINE, GONE = 1, 2


class Local:
    """Answers for this worker."""

    may_wait = False
    owner = None

    def answer(self, message: bytes) -> bytes:
        response = dm_env_rpc_pb2.EnvironmentResponse(create_world={"world_name": "world-1-1"})
        return response.SerializeToString()


class Ended:
    """The link to a worker that has ended, of which the board has not been told."""

    may_wait = True
    owner = None
    is_closed = False

    def answer(self, message: bytes) -> bytes:
        raise WorkerGoneError

    def close(self) -> None:
        self.is_closed = True


def test_a_world_that_a_worker_was_to_create_is_created_here_if_that_has_ended() -> None:
    ended = Ended()
    rows = [SimpleNamespace(serial=serial) for serial in (MINE, GONE)]
    slot: Any = SimpleNamespace(
        row=rows[0], board=SimpleNamespace(rows=rows), where_to_create=lambda *_: GONE
    )
    local: Any = Local()
    link: Any = ended
    stream = RoutedStream(local, slot, lambda serial: link, Limits(), spreads=False)

    def ask(**request: Any) -> Any:
        message = dm_env_rpc_pb2.EnvironmentRequest(**request).SerializeToString()
        return dm_env_rpc_pb2.EnvironmentResponse.FromString(stream.answer(message))

    assert ask(create_world={}).create_world.world_name == "world-1-1"
    assert ended.is_closed
    refused = ask(destroy_world={"world_name": f"world-{GONE}-1"})
    assert "the process that it was in has ended" in refused.error.message
