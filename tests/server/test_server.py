"""The hosting server: worlds, agents, errors that help, clients that vanish."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client import (
    Connection,
    ConnectionLostError,
    DmEnvRpcError,
    SpecError,
    connect,
    create_world,
    make,
    pack_tensor,
    unpack_tensor,
)
from dm_env_rpc_client import dm_env_rpc_pb2 as pb
from dm_env_rpc_client.server import Catch, Properties, Server, serve
from dm_env_rpc_client.server.errors import ErrorLog
from dm_env_rpc_client.server.host import Host
from dm_env_rpc_client.server.options import ServeOptions
from dm_env_rpc_client.server.session import Session
from dm_env_rpc_client.tensors.settings import pack_settings
from dm_env_rpc_client.tensors.specs import VariableArray
from dm_env_rpc_client.transports.server_streams import Peer, StreamStatusError
from tests.support.environments import Echo
from tests.support.scripted import extension
from tests.support.stopwatch import time_limit
from tests.travelling.environments.of_dm_env import ENDLESS, Timed

RUNNING, TERMINATED, INTERRUPTED = 1, 2, 3


NONSENSE = {99: pack_tensor("nonsense")}


@pytest.fixture
def connection(catch_server: Server) -> Iterator[Connection]:
    with connect(catch_server.address, request_timeout=10) as connected:
        yield connected


def join(connection: Connection, **settings: Any) -> str:
    name = create_world(connection, settings)
    connection.send(pb.JoinWorldRequest(world_name=name))
    return name


def step(connection: Connection, paddle: int = 1, *observations: int) -> Any:
    return connection.send(
        pb.StepRequest(
            actions={1: pack_tensor(paddle, np.int32)}, requested_observations=observations
        )
    )


def refused(connection: Connection, request: Any, text: str) -> None:
    """Fails unless an error says this, which begins with its code."""
    with pytest.raises(DmEnvRpcError, match=f"answered {text}"):
        connection.send(request)


@pytest.mark.parametrize(
    ("is_joined", "request_", "text"),
    [
        (False, pb.StepRequest(), "FAILED_PRECONDITION: .*not joined to a world"),
        (False, pb.ResetRequest(), "FAILED_PRECONDITION: .*not joined to a world"),
        (False, pb.JoinWorldRequest(world_name="no"), "NOT_FOUND: .*'no'; worlds: 'world-1'"),
        (False, pb.ResetWorldRequest(world_name="no"), "NOT_FOUND: .*'no'; worlds: 'world-1'"),
        (False, pb.DestroyWorldRequest(world_name="no"), "NOT_FOUND: .*'no'; worlds: 'world-1'"),
        (False, extension(1), "UNIMPLEMENTED: .*no extension 'type.googleapis.com/google"),
        (True, pb.JoinWorldRequest(world_name="world-1"), "FAILED_PRECONDITION: .*allowed while"),
        (True, pb.StepRequest(requested_observations=[42]), "INVALID_ARGUMENT: .*uid 42"),
        (True, pb.StepRequest(actions=NONSENSE), "INVALID_ARGUMENT: .*unknown action uid 99"),
    ],
)
def test_a_refusal_says_what_is_wrong(
    connection: Connection, is_joined: bool, request_: Any, text: str
) -> None:
    name = create_world(connection)
    if is_joined:
        connection.send(pb.JoinWorldRequest(world_name=name))
        assert connection.send(pb.StepRequest()).state == RUNNING
    refused(connection, request_, text)
    # Nothing has changed.
    connection.send(pb.LeaveWorldRequest())
    connection.send(pb.JoinWorldRequest(world_name=name))


def test_what_means_nothing_does_nothing(connection: Connection) -> None:
    connection.send(pb.LeaveWorldRequest())  # Without having joined.
    join(connection)
    # Actions of a step that begins a sequence.
    assert connection.send(pb.StepRequest(actions=NONSENSE)).state == RUNNING


def test_only_what_is_requested_is_observed(connection: Connection) -> None:
    join(connection)
    assert not step(connection).observations
    assert list(step(connection, 1, 1, 1, 1).observations) == [1]


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (pack_tensor(1.0), "has dtype float64; expected int32"),
        (pack_tensor([1, 1], np.int32), r"has shape \[2\]; expected \[\]"),
        (pack_tensor(3, np.int32), r"outside its bounds \[0, 2\]"),
        (pack_tensor(-1, np.int32), r"outside its bounds"),
        (pb.Tensor(), "no payload"),
    ],
)
def test_an_action_that_does_not_conform_is_refused_and_changes_nothing(
    connection: Connection, tensor: pb.Tensor, text: str
) -> None:
    join(connection, rows=3)
    step(connection)
    refused(connection, pb.StepRequest(actions={1: tensor}), f"INVALID_ARGUMENT: .*{text}")
    assert step(connection).state == RUNNING
    assert step(connection).state == TERMINATED


NOT_UTF_8 = b"\x12\x03\x0a\x01\xff"


"""A JoinWorldRequest whose world name is not text."""


def test_what_is_no_request_is_refused_or_ends_the_stream() -> None:
    host = Host(ServeOptions(environment=Catch), ErrorLog(), Properties())
    session = Session(host, Peer("ipv4:127.0.0.1:1"))
    answer = pb.EnvironmentResponse.FromString(session.answer(b""))
    assert "no payload" in answer.error.message
    for message in (b"\xff\xff", NOT_UTF_8):
        with pytest.raises(StreamStatusError, match="not an EnvironmentRequest"):
            session.answer(message)


def test_reset_sends_the_specs_whether_they_changed_or_not(connection: Connection) -> None:
    request = pb.JoinWorldRequest(world_name=create_world(connection, {"rows": 3}))
    joined = connection.send(request).specs
    assert connection.send(pb.ResetRequest()).specs == joined
    step(connection)
    assert connection.send(pb.ResetRequest()).specs == joined
    changed = connection.send(pb.ResetRequest(settings={"columns": pack_tensor(2)})).specs
    assert changed != joined
    assert list(changed.observations[1].shape) == [3, 2]


def test_several_environments_are_picked_by_a_setting() -> None:
    with serve({"catch": Catch, "echo": Echo}) as server:
        with make(server.address, {"environment": "echo", "length": 2}) as env:
            assert list(env.action_spec()) == ["value"]
        for settings in ({}, {"environment": "chess"}, {"environment": 3}):
            with pytest.raises(DmEnvRpcError, match="one of: 'catch', 'echo'"):
                make(server.address, settings)
    with serve({"catch": Catch}) as server:
        make(server.address).close()  # There is only one.


# ResetWorld from elsewhere: the agent hears of it by an INTERRUPTED step.


def test_a_reset_from_outside_cannot_change_the_specs_of_an_agent(connection: Connection) -> None:
    settings = pack_settings({"rows": 20})
    request = pb.ResetWorldRequest(world_name=join(connection), settings=settings)
    with connection.reopen() as spectator:
        refused(spectator, request, "FAILED_PRECONDITION: .*cannot send new specs")
    assert step(connection).state == RUNNING


def test_plaintext_is_not_served_to_other_machines_unless_asked_to() -> None:
    with pytest.raises(SpecError, match="insecure=True"):
        serve(Catch, "0.0.0.0:0")
    with serve(Catch, "0.0.0.0:0", insecure=True) as server:
        port = server.address.rpartition(":")[2]
        with make(f"localhost:{port}") as env:
            assert env.reset().first()


def test_a_stopped_server_ends_its_streams() -> None:
    server = serve(Catch)
    env = make(server.address)
    env.reset()
    assert not server.wait(0.01)
    assert "1 agents" in repr(server)
    with time_limit(3):
        server.stop(0.1)
        server.stop()
    assert server.wait(20)
    with pytest.raises(ConnectionLostError):
        env.step({"paddle": 1})
    env.close()
    assert (server.agent_count, server.world_count) == (0, 0)


def arms() -> dm_env.Environment:
    """Observes its actions: one of fixed and one of variable length."""
    fixed = specs.BoundedArray((2, 3), np.float32, -1, 1)
    spec = {"fixed": fixed, "free": VariableArray((-1,), np.int32)}
    first = {"fixed": np.zeros((2, 3), np.float32), "free": [0, 0]}
    return Timed(0, ENDLESS, spec, lambda env: env.action or first, spec)


def test_an_action_may_leave_a_length_open_or_be_one_element_for_all() -> None:
    whole = np.arange(6).reshape(2, 3) / 8
    for value, shape, numbers, expected in (
        (whole, [2, -1], [4, 5, 6], whole),
        (0.5, [2, 3], [7], np.full((2, 3), 0.5)),
    ):
        fixed, free = pack_tensor(value, np.float32), pack_tensor(numbers, np.int32)
        fixed.shape[:], free.shape[:] = shape, [-1]
        with serve(arms) as server, connect(server.address) as connected:
            join(connected)
            connected.send(pb.StepRequest())
            request = pb.StepRequest(actions={1: fixed, 2: free}, requested_observations=[1, 2])
            observations = connected.send(request).observations
        np.testing.assert_array_equal(unpack_tensor(observations[1]), expected)
        np.testing.assert_array_equal(unpack_tensor(observations[2]), numbers)
