"""The loading code of a suite of environments for dm-env-rpc, with its imports changed.

The public suites start an engine, wait for its channel, replace `connection.send`, create and join
a world by hand, derive from DmEnvAdaptor and end the engine in `close`. The same code is run with
both packages here, over an engine in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import dm_env
import grpc
import numpy as np
import pytest
from dm_env_rpc.v1 import connection as reference_connection
from dm_env_rpc.v1 import dm_env_adaptor as reference_adaptor
from dm_env_rpc.v1 import dm_env_rpc_pb2 as reference_pb2
from dm_env_rpc.v1 import error as reference_error
from dm_env_rpc.v1 import tensor_utils
from dm_env_rpc.v1.extensions import properties as reference_properties

import dm_env_rpc_client
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from tests.support.ports import HeldPort
from tests.support.scripted import settles
from tests.support.stopwatch import patience

TRANSPORTS = ["grpc"]

REFERENCE = types.SimpleNamespace(
    Connection=reference_connection.Connection,
    DmEnvAdaptor=reference_adaptor.DmEnvAdaptor,
    DmEnvRpcError=reference_error.DmEnvRpcError,
    LostError=grpc.RpcError,
    PropertiesExtension=reference_properties.PropertiesExtension,
    pack_tensor=tensor_utils.pack_tensor,
    dm_env_rpc_pb2=reference_pb2,
)
OURS = types.SimpleNamespace(
    Connection=dm_env_rpc_client.Connection,
    DmEnvAdaptor=dm_env_rpc_client.DmEnvAdaptor,
    DmEnvRpcError=dm_env_rpc_client.DmEnvRpcError,
    LostError=ConnectionError,
    PropertiesExtension=PropertiesExtension,
    pack_tensor=dm_env_rpc_client.pack_tensor,
    dm_env_rpc_pb2=dm_env_rpc_client.dm_env_rpc_pb2,
)

ATTEMPTS = 60
REPEATS = 2


class EngineError(Exception):
    """The suite's own error for all that goes wrong with its engine."""


class Engine:
    """The process, on a port that is reserved for it."""

    def __init__(self) -> None:
        self._held = HeldPort()
        self.address = self._held.address
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.environment.foreign.stub_engine", self.address],
            stdout=subprocess.PIPE,
            text=True,
        )

    def end(self) -> list[str]:
        """Ends the process; returns what it has printed."""
        self.process.terminate()
        try:
            return self.process.communicate(timeout=patience(30))[0].splitlines()
        finally:
            self.process.kill()
            self._held.close()


class Details(NamedTuple):
    channel: grpc.Channel
    connection: Any
    specs: Any


def connect_to(api: Any, address: str, agent_name: str = "agent") -> Details:
    channel, connection = open_connection(api, address)
    original_send = connection.send

    def send(request: Any) -> Any:
        try:
            return original_send(request)
        except api.LostError as error:
            raise EngineError("the engine is gone") from error

    connection.send = send
    try:
        settings = {"seed": api.pack_tensor(np.int64(40))}
        created = connection.send(api.dm_env_rpc_pb2.CreateWorldRequest(settings=settings))
        settings = {"agent_name": api.pack_tensor(agent_name)}
        joined = connection.send(
            api.dm_env_rpc_pb2.JoinWorldRequest(world_name=created.world_name, settings=settings)
        )
    except BaseException:
        connection.close()
        channel.close()
        raise
    return Details(channel, connection, joined.specs)


def open_connection(api: Any, address: str) -> tuple[grpc.Channel, Any]:
    for _ in range(ATTEMPTS):
        channel = grpc.secure_channel(address, grpc.local_channel_credentials())
        try:
            grpc.channel_ready_future(channel).result(timeout=1)
        except grpc.FutureTimeoutError:
            channel.close()
            continue
        connection = api.Connection(channel)
        try:
            connection.send(api.dm_env_rpc_pb2.ResetRequest())
        except api.DmEnvRpcError:
            return channel, connection  # Refused, because no world was joined: it answers.
        except api.LostError:
            connection.close()
            channel.close()
    raise EngineError("the engine does not start")


def load(api: Any, engine: Engine, details: Details) -> Any:
    class EngineEnvironment(api.DmEnvAdaptor):
        def __init__(self) -> None:
            self.connection = details.connection
            super().__init__(
                details.connection,
                details.specs,
                requested_observations=["path", "heard", "steps"],
                extensions={"properties": api.PropertiesExtension(details.connection)},
            )

        def step(self, action: Any) -> dm_env.TimeStep:
            reward = None
            for _ in range(REPEATS):
                # Steps of the reference go through the replaced `send`; these do not.
                try:
                    timestep = super().step(action)
                except api.LostError as error:
                    raise EngineError("the engine is gone") from error
                if timestep.first():
                    return timestep
                reward = timestep.reward + (reward or 0.0)
                if timestep.last():
                    break
            return timestep._replace(reward=reward)

        def close(self) -> None:
            super().close()
            self.connection.close()
            details.channel.close()
            self.requests = engine.end()

    return EngineEnvironment()


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine()
    yield engine
    if engine.process.poll() is None:
        engine.end()


def play(api: Any) -> tuple[list[dm_env.TimeStep], list[str]]:
    engine = Engine()
    try:
        env = load(api, engine, connect_to(api, engine.address))
        env.properties["seed"] = 5
        assert env.properties["seed"] == 5
        timesteps = [env.reset()]
        for number in range(12):
            path = np.array([[number / 12], [0.25]])
            action = {"arm": {"grip": number % 4}, "path": path, "speech": f"step {number}"}
            timesteps.append(env.step(action))
        timesteps.append(env.reset())
        env.close()
    finally:
        if engine.process.poll() is None:
            engine.end()
    assert engine.process.returncode == 0
    return timesteps, env.requests


def test_a_ported_suite_takes_the_same_steps() -> None:
    expected, expected_requests = play(REFERENCE)
    threads = threading.active_count()
    timesteps, requests = play(OURS)
    assert settles(lambda: threading.active_count() <= threads)
    assert [step.step_type for step in timesteps] == [step.step_type for step in expected]
    for step, reference in zip(timesteps, expected, strict=True):
        assert (step.reward, step.discount) == (reference.reward, reference.discount)
        assert list(step.observation) == list(reference.observation)
        for name, value in reference.observation.items():
            np.testing.assert_array_equal(step.observation[name], value)
    # A Reset that would change nothing is not sent.
    counts = [each.count("step") for each in (requests, expected_requests)]
    assert counts[0] == counts[1]
    end = ["step", "leave_world", "stream ended"]
    assert requests[-3:] == end
    assert [each for each in requests if each not in ("step", "reset")] == [
        each for each in expected_requests if each not in ("step", "reset")
    ]


def test_a_refused_join_is_the_suites_to_handle(engine: Engine) -> None:
    threads = threading.active_count()
    with pytest.raises(dm_env_rpc_client.DmEnvRpcError, match="there is no such agent"):
        connect_to(OURS, engine.address, "nobody")
    assert engine.end()[-2:] == ["join_world", "stream ended"]
    assert settles(lambda: threading.active_count() <= threads)


@pytest.mark.parametrize(
    "use",
    [
        lambda env: env.step({"arm": {"grip": 1}}),
        lambda env: env.connection.send(OURS.dm_env_rpc_pb2.StepRequest()),
        lambda env: env.properties.read("seed"),
    ],
    ids=["step", "send", "properties"],
)
def test_an_engine_that_dies_is_the_suites_error(
    engine: Engine, use: Callable[[Any], object]
) -> None:
    env = load(OURS, engine, connect_to(OURS, engine.address))
    env.reset()
    engine.process.kill()
    engine.process.wait(30)
    with pytest.raises(EngineError, match="the engine is gone"):
        use(env)
    env.close()
    assert env.properties is None
    assert engine.process.returncode == -9
