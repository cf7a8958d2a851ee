"""Client and server in random sequences of requests, against the table of the documents.

Requests are sent ahead of the answers, as many as Hypothesis likes, and what comes back is
compared with what the table says for each request at the time when it is processed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from dm_env_rpc_client import DmEnvRpcError, connect, dm_env_rpc_pb2, pack_tensor
from dm_env_rpc_client.server import Catch, Server, serve
from tests.protocol.states import FOLLOWS

ROWS = 3
NOWHERE = "nowhere"


class Model:
    """What the server should be in, worked out from the table and the rules of Catch."""

    def __init__(self) -> None:
        self.state = "NOT_JOINED"
        self.steps = 0

    def expect(self, field: str, world_exists: bool) -> str | None:
        """The state after a request that succeeds; None where it should be refused."""
        allowed = FOLLOWS[self.state, field]
        if not allowed or not world_exists:
            return None
        if field == "step":
            self.steps = self.steps + 1 if self.state == "RUNNING" else 0
            self.state = "TERMINATED" if self.steps == ROWS - 1 else "RUNNING"
        elif len(allowed) == 1:
            (self.state,) = allowed
        else:  # A world of Catch that is reset in a sequence.
            self.state = "INTERRUPTED"
        assert self.state in allowed
        return self.state


class PipelinedRequests(RuleBasedStateMachine):
    server: Server

    def __init__(self) -> None:
        super().__init__()
        self.connection = connect(self.server.address, request_timeout=20)
        self.model = Model()
        self.in_flight: list[tuple[str, str | None, Any]] = []

    @initialize()
    def create(self) -> None:
        rows = pack_tensor(ROWS)
        request = dm_env_rpc_pb2.CreateWorldRequest(settings={"rows": rows})
        self.world = self.connection.send(request).world_name

    def send(self, field: str, request: Any, world_exists: bool = True) -> None:
        expected = self.model.expect(field, world_exists)
        self.in_flight.append((field, expected, self.connection.start(request)))

    @rule(exists=st.booleans())
    def join(self, exists: bool) -> None:
        name = self.world if exists else NOWHERE
        self.send("join_world", dm_env_rpc_pb2.JoinWorldRequest(world_name=name), exists)

    @rule(count=st.integers(1, 5), paddle=st.integers(0, 2))
    def step(self, count: int, paddle: int) -> None:
        request = dm_env_rpc_pb2.StepRequest(
            actions={1: pack_tensor(paddle, np.int32)}, requested_observations=[1]
        )
        for _ in range(count):
            self.send("step", request)

    @rule()
    def reset(self) -> None:
        self.send("reset", dm_env_rpc_pb2.ResetRequest())

    @rule(exists=st.booleans())
    def reset_world(self, exists: bool) -> None:
        name = self.world if exists else NOWHERE
        self.send("reset_world", dm_env_rpc_pb2.ResetWorldRequest(world_name=name), exists)

    @rule()
    def leave(self) -> None:
        self.send("leave_world", dm_env_rpc_pb2.LeaveWorldRequest())

    @rule()
    def destroy_what_is_joined_or_not_there(self) -> None:
        name = self.world if self.model.state != "NOT_JOINED" else NOWHERE
        self.send("destroy_world", dm_env_rpc_pb2.DestroyWorldRequest(world_name=name), False)

    @rule()
    def read_the_answers(self) -> None:
        for field, expected, pending in self.in_flight:
            if expected is None:
                with pytest.raises(DmEnvRpcError):
                    self.connection.wait(pending)
                continue
            answer = self.connection.wait(pending)
            if field == "step":
                assert dm_env_rpc_pb2.EnvironmentStateType.Name(answer.state) == expected
                assert list(answer.observations) == [1]
            if field in ("join_world", "reset"):
                assert answer.specs.observations
        if self.in_flight:
            assert self.connection.lifecycle.state.name == self.model.state
        self.in_flight = []

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.read_the_answers()
            self.connection.send(dm_env_rpc_pb2.LeaveWorldRequest())
            self.connection.send(dm_env_rpc_pb2.DestroyWorldRequest(world_name=self.world))
        self.connection.close()


@pytest.fixture(autouse=True, scope="module")
def _server() -> Any:
    with serve(Catch) as PipelinedRequests.server:
        yield
        assert PipelinedRequests.server.errors == []
        assert PipelinedRequests.server.world_count == 0


TestPipelinedRequests = PipelinedRequests.TestCase
TestPipelinedRequests.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
