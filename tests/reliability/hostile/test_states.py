"""Rows 18 and 19: states that are not allowed, and resets that change the specs."""

from __future__ import annotations

import dm_env
import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client import ProtocolError, SpecError, dm_env_rpc_pb2, make, set_bounds
from dm_env_rpc_client.testing import Request, Response
from tests.environment.one_world import scripted
from tests.reliability.recording import Seen

FIRST, MID, LAST = dm_env.StepType
RUNNING, TERMINATED, INTERRUPTED = 1, 2, 3


@pytest.mark.row(18)
@pytest.mark.parametrize(
    ("states", "text"),
    [
        ([0], "state 0"),
        ([99], "state 99"),
        ([TERMINATED], "JOINED.*TERMINATED"),
        ([INTERRUPTED], "JOINED.*INTERRUPTED"),
        ([RUNNING, 0], "state 0"),
        ([RUNNING, 99], "state 99"),
        ([RUNNING, TERMINATED, TERMINATED], "TERMINATED.*TERMINATED"),
        ([RUNNING, TERMINATED, INTERRUPTED], "TERMINATED.*INTERRUPTED"),
        ([RUNNING, INTERRUPTED, TERMINATED], "INTERRUPTED.*TERMINATED"),
    ],
)
def test_row_18_states_that_the_protocol_does_not_allow_are_told(
    states: list[int], text: str, seen: Seen
) -> None:
    with scripted(*states) as server, make(server.address) as env:
        for _ in states[:-1]:
            env.step({"a": 1})
        with pytest.raises(ProtocolError, match=text):
            env.step({"a": 1})
    seen(refused_states=1)


@pytest.mark.row(19)
def test_row_19_a_reset_that_changes_the_specs_is_adopted(seen: Seen) -> None:
    changed = dm_env_rpc_pb2.ActionObservationSpecs(
        actions={7: dm_env_rpc_pb2.TensorSpec(name="b", dtype=dm_env_rpc_pb2.FLOAT)},
        observations={
            9: dm_env_rpc_pb2.TensorSpec(name="p.q", dtype=dm_env_rpc_pb2.INT32, shape=[-1])
        },
    )
    set_bounds(changed.actions[7], -1, 1)

    def reset(request: Request) -> Response:
        return Response(reset=dm_env_rpc_pb2.ResetResponse(specs=changed))

    with (
        scripted(RUNNING, RUNNING, RUNNING, RUNNING, answers={"reset": reset}) as server,
        make(server.address) as env,
    ):
        env.reset()
        env.step({"a": 1})
        first = env.reset()
        assert first.step_type is FIRST
        assert list(first.observation["p"]["q"]) == [1, 2]
        assert env.action_spec() == {"b": specs.BoundedArray((), np.float32, -1, 1, "b")}
        with pytest.raises(SpecError, match="unknown action 'a'"):
            env.step({"a": 1})
        assert env.step({"b": 0.5}).step_type is MID
    seen(changed_specs=1)
