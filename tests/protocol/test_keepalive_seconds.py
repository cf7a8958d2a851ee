"""How long a server may be silent depends on the request that it answers next."""

from __future__ import annotations

from typing import Any

import pytest

from dm_env_rpc_client import dm_env_rpc_pb2
from dm_env_rpc_client.protocol.envelopes import EncodedRequest
from dm_env_rpc_client.protocol.lifecycle import Lifecycle, State
from dm_env_rpc_client.protocol.pipeline import (
    KEEPALIVE_SECONDS,
    LOADING_KEEPALIVE_SECONDS,
    Pending,
    Pipeline,
)
from tests.support.scripted import extension

FIELDS = {
    "create_world": LOADING_KEEPALIVE_SECONDS,
    "join_world": LOADING_KEEPALIVE_SECONDS,
    "step": KEEPALIVE_SECONDS,
    "reset": LOADING_KEEPALIVE_SECONDS,
    "reset_world": LOADING_KEEPALIVE_SECONDS,
    "leave_world": LOADING_KEEPALIVE_SECONDS,
    "destroy_world": LOADING_KEEPALIVE_SECONDS,
    "extension": KEEPALIVE_SECONDS,
}


def waiting(field: str, state: State = State.RUNNING, is_batch: bool = False) -> Pipeline:
    """A pipeline in which a request of some kind waits for its answer, and a step behind it."""
    lifecycle = Lifecycle()
    lifecycle.state, lifecycle.is_batch = state, is_batch
    pipeline = Pipeline("server")
    request: Any = EncodedRequest(field, b"", bytes)
    pipeline.push([Pending(request, lifecycle=lifecycle), Pending(request)])
    return pipeline


def test_all_requests_are_tried() -> None:
    fields = dm_env_rpc_pb2.EnvironmentRequest.DESCRIPTOR.fields
    assert {field.name for field in fields} == FIELDS.keys()


@pytest.mark.parametrize("field", FIELDS)
def test_the_default_is_that_of_the_oldest_request(field: str) -> None:
    pipeline = waiting(field)
    assert pipeline.keepalive_seconds() == FIELDS[field]
    pipeline.keepalive_timeout = 45.0  # The user's holds for all.
    assert pipeline.keepalive_seconds() == 45.0


@pytest.mark.parametrize("state", State)
def test_a_step_that_begins_a_sequence_counts_as_a_reset(state: State) -> None:
    begins = state is not State.RUNNING
    expected = LOADING_KEEPALIVE_SECONDS if begins else KEEPALIVE_SECONDS
    assert waiting("step", state).keepalive_seconds() == expected
    assert waiting("extension", state).keepalive_seconds() == KEEPALIVE_SECONDS
    # So does each step of a batch.
    assert waiting("step", state, True).keepalive_seconds() == LOADING_KEEPALIVE_SECONDS


def test_without_a_request_nothing_is_long() -> None:
    pipeline = Pipeline("server")
    assert pipeline.keepalive_seconds() == KEEPALIVE_SECONDS
    pipeline.push([Pending.of(extension(1), None, Lifecycle())])
    assert pipeline.keepalive_seconds() == KEEPALIVE_SECONDS
