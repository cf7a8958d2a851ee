"""PyPI's dm-env-rpc as the peer, both ways: in processes of their own, and in one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import dm_env
import numpy as np
import pytest
from dm_env_rpc.v1 import connection as reference_connection
from dm_env_rpc.v1 import dm_env_adaptor as reference_adaptor
from dm_env_rpc.v1 import dm_env_rpc_pb2 as reference_pb2
from dm_env_rpc.v1 import error as reference_error

import dm_env_rpc_client
from dm_env_rpc_client import DmEnvRpcError, create_secure_channel_and_connect, make
from dm_env_rpc_client.server import Catch, Server, serve
from tests.environment.foreign import reference_server
from tests.support.environments import Robot

FIRST, MID, LAST = dm_env.StepType


@pytest.fixture(params=["one process", "two processes"])
def reference_address(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server on the reference's modules."""
    if request.param == "one process":
        server, address = reference_server.start()
        yield address
        server.stop(0).wait()
        return
    process = subprocess.Popen(
        [sys.executable, "-m", reference_server.__name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    yield process.stdout.readline().strip()
    process.stdin.close()
    process.stdout.close()
    assert process.wait(10) == 0


def test_our_adaptor_drives_a_server_on_the_references_modules(reference_address: str) -> None:
    with make(reference_address) as env:
        assert env.action_spec()["arm"]["force"].minimum == -1
        timestep = env.reset()
        for step in range(12):
            if step in (5, 11):
                assert timestep.step_type is LAST
                assert timestep.discount == 0.0
            else:
                assert timestep.step_type is (FIRST if step in (0, 6) else MID)
            timestep = env.step({"arm": {"force": [0.5, -0.25]}})
        assert timestep.step_type is FIRST
        env.step({"arm": {"force": [1, 1]}})
        mid = env.step({"arm": {"force": [0.5, 0.25]}})
        np.testing.assert_array_equal(mid.observation["body"]["position"], [1.5, 1.25])
        assert mid.reward == np.float32(0.75)
        assert env.reset().step_type is FIRST


def test_our_other_calls_drive_it_too(reference_address: str) -> None:
    with create_secure_channel_and_connect(reference_address, timeout=5) as connection:
        with pytest.raises(DmEnvRpcError, match="no such world"):
            dm_env_rpc_client.join_world(connection, "nowhere", {})
        env, world_name = dm_env_rpc_client.create_and_join_world(connection, {}, {})
        unrolled = env.unroll({"arm.force": np.zeros((11, 2), np.float32)})
        assert list(unrolled.step_type) == [FIRST, *[MID] * 4, LAST, FIRST, *[MID] * 4]
        env.close()
        dm_env_rpc_client.destroy_world(connection, world_name)


def drive_with_the_reference(address: str) -> dict[str, object]:
    """Runs an episode of Catch with the reference's Connection and DmEnvAdaptor."""
    import grpc

    channel = grpc.insecure_channel(address)
    connection = reference_connection.Connection(channel)
    try:
        env, world_name = reference_adaptor.create_and_join_world(
            connection, {"rows": 4, "seed": 0}, {}
        )
        kinds, rewards = [], []
        timestep = env.reset()
        for _ in range(9):
            kinds.append(int(timestep.step_type))
            rewards.append(None if timestep.reward is None else float(timestep.reward))
            timestep = env.step({"paddle": 1})
        refusal = ""
        try:
            connection.send(reference_pb2.JoinWorldRequest(world_name="nowhere"))
        except reference_error.DmEnvRpcError as error:
            refusal = error.message
        env.close()
        connection.send(reference_pb2.DestroyWorldRequest(world_name=world_name))
        return {
            "kinds": kinds,
            "rewards": rewards,
            "shape": list(env.observation_spec()["board"].shape),
            "actions": int(env.action_spec()["paddle"].num_values),
            "refusal": refusal,
        }
    finally:
        # Its request iterator ends with nothing else.
        connection._stream._requests.put(None)
        connection.close()
        channel.close()


def check_driven(result: dict[str, object]) -> None:
    local = Catch(4, seed=0)
    expected = [local.reset(), *(local.step({"paddle": 1}) for _ in range(8))]
    assert result["kinds"] == [int(step.step_type) for step in expected]
    # The reference knows no reward at the end of a step that is FIRST either.
    assert result["rewards"] == [step.reward for step in expected]
    assert result["shape"] == [4, 5]
    assert result["actions"] == 3
    assert "not allowed" in str(result["refusal"])


def test_the_references_adaptor_drives_our_server_in_one_process(catch_server: Server) -> None:
    check_driven(drive_with_the_reference(catch_server.address))
    assert (catch_server.agent_count, catch_server.world_count) == (0, 0)


def test_the_references_adaptor_drives_our_server_from_another_process(
    catch_server: Server,
) -> None:
    program = (
        "import json, sys; from tests.environment.foreign.test_reference_peer import *; "
        "print(json.dumps(drive_with_the_reference(sys.argv[1])))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program, catch_server.address],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    check_driven(json.loads(finished.stdout))
    assert (catch_server.agent_count, catch_server.world_count) == (0, 0)


def test_both_adaptors_see_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    import grpc

    with serve(Robot) as server:
        channel = grpc.insecure_channel(server.address)
        connection = reference_connection.Connection(channel)
        theirs, _ = reference_adaptor.create_and_join_world(connection, {}, {})
        with make(server.address) as ours:
            action = {
                "arm": {"torque": np.array([0.5, 0, 0], np.float32), "grip": True},
                "mode": 1,
                "speech": "hello",
            }
            for step in range(4):
                left = theirs.reset() if step == 0 else theirs.step(action)
                right = ours.reset() if step == 0 else ours.step(action)
                assert left.step_type is right.step_type
                assert left.reward == right.reward
                assert left.observation.keys() == right.observation.keys()
                for name in ("rgb", "depth"):
                    np.testing.assert_array_equal(
                        left.observation["camera"][name], right.observation["camera"][name]
                    )
                assert list(left.observation["heard"]) == list(right.observation["heard"])
        connection._stream._requests.put(None)
        connection.close()
        channel.close()
