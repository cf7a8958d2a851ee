"""Which worker answers a request of a stream, when one has just ended."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dm_env_rpc_client import dm_env_rpc_pb2
from dm_env_rpc_client.server.processes.registry import Registry, WorkerShare
from dm_env_rpc_client.server.processes.streams import (
    ANSWER,
    STATUS,
    Link,
    PassedStream,
    Places,
    WorkerGoneError,
)
from dm_env_rpc_client.system.message_pipe import MessagePipe
from dm_env_rpc_client.tensors.memory_limits import Limits
from dm_env_rpc_client.transports.server_streams import Peer, StreamStatusError


class Workers(Places):
    """Two workers, whose streams threads answer."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.shares = [self.registry.new_share() for _ in range(2)]
        self.able = list(self.shares)
        self.ended: set[WorkerShare] = set()
        self.ends_at: str | None = None
        self.asked: list[tuple[int, str]] = []

    def place(self, is_gone: Callable[[], bool]) -> WorkerShare:
        share = self.registry.place(self.able)
        assert share is not None
        return share

    def was_not_created(self, share: WorkerShare) -> None:
        self.registry.was_not_created(share)

    def here_for(self, request: dm_env_rpc_pb2.CreateWorldRequest) -> WorkerShare | None:
        return None

    def is_here(self, share: WorkerShare) -> bool:
        return False

    def of(self, name: str) -> WorkerShare | None:
        return self.registry.of(name)

    def connect(self, share: WorkerShare, peer: Peer) -> Link:
        if share in self.ended:
            raise WorkerGoneError(may_have_begun=False)
        mine, other = MessagePipe.pair()
        threading.Thread(target=self._serve, args=(other, share), daemon=True).start()
        return Link(mine, share)

    def lost(self, share: WorkerShare) -> None:
        self.registry.lose(share)
        self.able.remove(share)

    def _serve(self, pipe: MessagePipe, share: WorkerShare) -> None:
        try:
            while True:
                request = dm_env_rpc_pb2.EnvironmentRequest.FromString(
                    bytes(pipe.receive().message)
                )
                field = request.WhichOneof("payload") or ""
                self.asked.append((self.shares.index(share), field))
                if field == self.ends_at:
                    return
                if field == "reset":
                    pipe.send(STATUS, pickle.dumps(("CANCELLED", "told to")))
                    return
                answer = dm_env_rpc_pb2.EnvironmentResponse()
                getattr(answer, field).SetInParent()
                if field == "create_world":
                    answer.create_world.world_name = self.registry.named(share)
                pipe.send(ANSWER, answer.SerializeToString())
        except (EOFError, OSError):
            pass
        finally:
            pipe.shut_down()
            pipe.close()


@pytest.fixture
def workers() -> Workers:
    return Workers()


@pytest.fixture
def stream(workers: Workers) -> Iterator[PassedStream]:
    ends: list[int] = []
    made = PassedStream(workers, Peer("a client"), Limits(), lambda: ends.append(1))
    yield made
    made.close()
    assert ends == [1]


def ask(stream: PassedStream, **request: Any) -> dm_env_rpc_pb2.EnvironmentResponse:
    message = dm_env_rpc_pb2.EnvironmentRequest(**request).SerializeToString()
    return dm_env_rpc_pb2.EnvironmentResponse.FromString(stream.answer(message))


def test_a_world_is_created_elsewhere_if_a_worker_has_ended_before(
    workers: Workers, stream: PassedStream
) -> None:
    workers.ended.add(workers.shares[0])
    name = ask(stream, create_world={}).create_world.world_name
    assert workers.of(name) is workers.shares[1]
    assert [share.placed for share in workers.shares] == [0, 1]
    assert workers.asked == [(1, "create_world")]


def test_a_request_that_may_have_ended_a_worker_is_not_given_to_another(
    workers: Workers, stream: PassedStream
) -> None:
    workers.ends_at = "create_world"
    with pytest.raises(StreamStatusError, match="answering the request has ended") as ended:
        ask(stream, create_world={})
    assert (ended.value.code, workers.asked) == ("UNAVAILABLE", [(0, "create_world")])
    assert [share.placed for share in workers.shares] == [0, 0]
    assert workers.able == [workers.shares[1]]


@pytest.mark.parametrize("field", ["step", "leave_world"])
def test_a_stream_ends_with_the_worker_in_which_it_has_joined_a_world(
    workers: Workers, stream: PassedStream, field: str
) -> None:
    name = ask(stream, create_world={}).create_world.world_name
    ask(stream, join_world={"world_name": name})
    ask(stream, step={})
    workers.ends_at = field
    with pytest.raises(StreamStatusError, match="world has ended") as ended:
        ask(stream, **{field: {}})
    assert ended.value.code == "UNAVAILABLE"


def test_what_is_about_a_world_goes_where_it_is(workers: Workers, stream: PassedStream) -> None:
    names = [ask(stream, create_world={}).create_world.world_name for _ in range(2)]
    ask(stream, join_world={"world_name": names[1]})
    workers.asked.clear()
    ask(stream, reset_world={"world_name": names[0]})
    ask(stream, step={})
    ask(stream, join_world={"world_name": names[0]})  # Which the session refuses.
    ask(stream, leave_world={})
    ask(stream, destroy_world={"world_name": names[1]})
    fields = ["reset_world", "step", "join_world", "leave_world", "destroy_world"]
    assert workers.asked == list(zip([0, 1, 1, 1, 1], fields, strict=True))


def test_a_status_ends_the_stream(stream: PassedStream) -> None:
    with pytest.raises(StreamStatusError, match="told to") as ended:
        ask(stream, reset={})
    assert ended.value.code == "CANCELLED"


def test_a_client_that_is_gone_waits_no_longer(stream: PassedStream) -> None:
    ask(stream, create_world={})
    stream.abandon()
    with pytest.raises(StreamStatusError, match="the client is gone"):
        ask(stream, leave_world={})
