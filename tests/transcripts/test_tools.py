"""The tools of the transcripts: what is compared, what is not, and how it is kept."""

from __future__ import annotations

import pytest

import dm_env_rpc_client as d
from dm_env_rpc_client import dm_env_rpc_pb2 as pb
from tests.transcripts.canonical import Placeholders, canonical

Response = pb.EnvironmentResponse


@pytest.mark.parametrize("text", ["1.5", "a/b", "worlds-1", "type.googleapis.com/a.B", "3 steps"])
def test_other_texts_are_compared(text: str) -> None:
    assert Placeholders()(text) == text


def test_the_bytes_of_a_step_are_compared_as_they_are() -> None:
    tensor = d.pack_tensor(1)
    one, other = (pb.StepResponse(state="RUNNING", observations={uid: tensor}) for uid in (1, 2))
    # A map in two orders: both mean the same.
    orders = [
        Response(step=first).SerializeToString() + Response(step=second).SerializeToString()
        for first, second in ((one, other), (other, one))
    ]
    assert Response.FromString(orders[0]) == Response.FromString(orders[1])
    for by_hand, count in ((True, 2), (False, 1)):
        forms = {canonical(data, Response, Placeholders(), by_hand).data for data in orders}
        assert len(forms) == count
