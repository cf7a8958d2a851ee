"""Arguments of connections and worlds, of vectors, rollouts, recordings, bridges and tools."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import dm_env
import gymnasium
import pytest

import dm_env_rpc_client
from dm_env_rpc_client import Limits, Restart, recording
from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.bridges import gym_socket
from dm_env_rpc_client.bridges.env_c_api import EnvCApiEnvironment
from dm_env_rpc_client.compliance import Options
from dm_env_rpc_client.distributed import LocalRollouts, RayRollouts, RemoteEnvironments
from dm_env_rpc_client.distributed.on_ray import RayServers
from dm_env_rpc_client.server import Catch
from dm_env_rpc_client.testing import FaultProxy
from tests.mistakes.doors import (
    FLAG,
    FOR_ALL,
    FROM_0,
    INT,
    LISTEN,
    NEVER,
    NOWHERE,
    REMOTE,
    SECONDS,
    VALUES,
    M,
    connect_async,
    never,
)

# Also what type checkers refuse.
rpc: Any = dm_env_rpc_client
VectorEnv: Any = RemoteVectorEnv
ParallelEnv: Any = RemoteParallelEnv
Proxy: Any = FaultProxy
Environments: Any = RemoteEnvironments
OptionsOf: Any = Options
replay: Any = recording.replay
proxy: Any = recording.proxy
read: Any = recording.read
Recorder: Any = recording.Recorder
serve_gym: Any = gym_socket.serve
socket_environment: Any = gym_socket.GymSocketEnvironment
c_environment: Any = EnvCApiEnvironment
restart: Any = Restart


def unstarted(timesteps: Any, weights: Any, generators: Any) -> Any:
    """A policy that must not be called."""
    raise AssertionError("a policy is called before the arguments are checked")


def environments(index: int) -> dm_env.Environment:
    raise AssertionError("an environment is made before the arguments are checked")


def rollouts(**given: Any) -> Any:
    return LocalRollouts(**{"make_env": environments, "policy": unstarted, **given})


def batched(**given: Any) -> Any:
    return rpc.BatchedEnvironment(**{"addresses": "localhost:1", "num_envs": 2, **given})


def ray_rollouts(**given: Any) -> Any:
    return RayRollouts(environments, unstarted, **given)


def ray_servers(**given: Any) -> Any:
    return RayServers(Catch, **given)


def replayed(**given: Any) -> Any:
    return replay(**{"path": "/no/such.mcap", **given})


def proxied(**given: Any) -> Any:
    return proxy(**{"upstream": NOWHERE, "path": "/no/such/file.mcap", **given})


def sent_async(address: str, timeout: Any) -> None:
    async def send() -> None:
        async with await rpc.connect_async(address) as connection:
            try:
                await connection.send(rpc.dm_env_rpc_pb2.LeaveWorldRequest(), timeout)
            finally:
                assert connection.is_usable

    asyncio.run(send())


def with_environment(act: Callable[[Any], Any]) -> Callable[[str], None]:
    def call(address: str) -> None:
        with rpc.make(address) as env:
            act(env)

    return call


def with_connection(act: Callable[[Any], Any]) -> Callable[[str], None]:
    def call(address: str) -> None:
        with rpc.connect(address) as connection:
            try:
                act(connection)
            finally:
                assert connection.is_usable
                assert connection.in_flight == 0

    return call


def sent(timeout: Any) -> Callable[[str], None]:
    request = rpc.dm_env_rpc_pb2.LeaveWorldRequest()
    return with_connection(lambda connection: connection.send(request, timeout))


MISTAKES: list[M] = [
    # connections and worlds
    M(lambda _: rpc.connect(50051), "a server address", "got 50051",
      "did you mean 'localhost:50051'?"),
    M(lambda _: connect_async(None), "a server address", "got None",
      "looks like 'localhost:50051'"),
    M(lambda _: rpc.create_secure_channel_and_connect(5), "a server address", "got 5",
      "'localhost:5'?"),
    M(lambda _: rpc.Connection("localhost:50051"), "channel", "got 'localhost:50051'",
      "did you mean connect('localhost:50051')?"),
    M(lambda _: rpc.AsyncConnection(5), "channel", "got 5", "must be a grpc.Channel"),
    M(sent("5"), "timeout", "got '5'", "a number of seconds"),
    M(sent(math.inf), "timeout", "got inf", "finite and more"),
    M(sent(0), "timeout", "got 0", "finite and more than 0"),
    M(lambda address: sent_async(address, "5"), "timeout", "got '5'", "a number of seconds"),
    M(lambda address: sent_async(address, math.nan), "timeout", "got nan",
      "finite and more than 0"),
    M(with_connection(lambda own: own.reopen(-1)), "timeout", "got -1", FOR_ALL),
    M(with_connection(lambda own: rpc.create_world(own, [1])), "create_world_settings", "got [1]",
      VALUES),
    M(with_connection(lambda own: rpc.join_world(own, 5)), "world_name", "got 5",
      "must be the name of a world"),
    M(with_connection(lambda own: rpc.create_and_join_world(own, {}, {}, nested_tensors="no")),
      "nested_tensors", "got 'no'", FLAG),
    M(with_connection(lambda own: rpc.reset_world(own, None)), "world_name", "got None",
      "must be the name of a world"),
    M(with_connection(lambda own: rpc.destroy_world(own, 1)), "world_name", "got 1",
      "must be the name of a world"),
    M(with_environment(lambda env: env.reset([1])), "settings", "got [1]", VALUES),
    M(with_environment(lambda env: env.reset("")), "settings", "got ''", VALUES),
    M(lambda _: rpc.make([NOWHERE]), "a server address", "['unix:/there/",
      "such as 'localhost:50051'"),
    M(lambda _: rpc.BatchedEnvironment([never, 50051]), "a server address", "the number 50051",
      "did you mean 'localhost:50051'?"),
    M(lambda _: rpc.make("process:engine", restart=0), "restart", "got 0", NEVER),
    M(lambda _: restart(attempts=0), "attempts of a Restart", "got 0", INT),
    M(lambda _: restart(attempts="5"), "attempts of a Restart", "got '5'", INT),
    M(lambda _: restart(backoff=0), "backoff of a Restart", "got 0", "finite and more"),
    M(lambda _: restart(max_backoff=math.inf), "max_backoff of a Restart", "got inf",
      "finite and more than 0"),
    M(lambda _: rpc.Limits(strings="1"), "strings of Limits", "got '1'", INT),
    M(lambda _: rpc.Limits(strings=True), "strings of Limits", "got True", INT),
    M(lambda _: rpc.Limits(message_bytes=1 << 31), "message_bytes", "2147483648",
      "at most 2147483647 bytes"),
    M(lambda _: proxied(address="0.0.0.0:0"), "0.0.0.0", "plaintext", "insecure=True"),
    M(lambda _: proxied(upstream="env.example:1"), "env.example:1", "plaintext", "insecure=True"),
    # batches
    M(lambda _: batched(addresses=[]), "addresses", "", "at least one"),
    M(lambda _: batched(addresses=["localhost:1", "localhost:2"], num_envs=1),
      "at least one environment at each address", "got 1", ""),
    M(lambda _: batched(create_world_settings=[{}]), "create_world_settings", "",
      "sequence of 2 mappings"),
    M(lambda _: batched(join_world_settings=lambda index: None), "join_world_settings",
      "got <function", "must be a mapping"),
    M(lambda _: batched(create_world_settings={"num_envs": 2}), "environment 0",
      "contain 'num_envs' = 2, and the argument num_envs is 2", "remove"),
    M(lambda _: batched(create_world_settings=[{}, {"num_envs": 3}], num_batches=0),
      "of environment 1", "'num_envs' = 3", ""),
    # vectors and other libraries
    M(lambda _: VectorEnv(never, autoreset_mode="sometimes"), "autoreset_mode", "got 'sometimes'",
      "AutoresetMode.SAME_STEP ('SameStep')"),
    M(lambda _: VectorEnv(never, unwrap_single="no"), "unwrap_single", "got 'no'", FLAG),
    M(lambda _: VectorEnv(never, seed_setting=5), "seed_setting", "got 5",
      "must be text, or None to send no seeds"),
    M(lambda _: VectorEnv(never, render_mode=5), "render_mode", "got 5", "must be text"),
    M(lambda _: gymnasium.make(REMOTE, address=never, seed_setting=["seed"]), "seed_setting",
      "got ['seed']", "must be text"),
    M(lambda _: gymnasium.make(REMOTE, address=never, render_observation=1), "render_observation",
      "got 1", "must be text, or None for the first image"),
    M(lambda _: ParallelEnv(never, "player"), "agents", "got 'player'",
      "must be a sequence of agents"),
    M(lambda _: ParallelEnv(never, 2), "agents", "got 2", "must be a sequence of agents"),
    M(lambda _: ParallelEnv(never, ["a"], world_name=5), "world_name", "got 5",
      "must be the name of a world, or None to create one"),
    M(lambda _: ParallelEnv(never, ["a"], render_mode=True), "render_mode", "got True",
      "must be text, or None"),
    # rollouts
    M(lambda _: rollouts(num_actors="2"), "num_actors", "got '2'", INT),
    M(lambda _: rollouts(envs_per_actor=0), "envs_per_actor", "got 0", INT),
    M(lambda _: rollouts(seed=True), "seed", "got True", "an integer of at least 0"),
    M(lambda _: rollouts(make_env=NOWHERE), "make_env", f"got {NOWHERE!r}",
      "must be a function from an index to an environment, or a RemoteEnvironments"),
    M(lambda _: rollouts(policy="random"), "policy", "got 'random'", "a function"),
    M(lambda _: ray_rollouts(start_timeout=-1), "start_timeout", "got -1", FOR_ALL),
    M(lambda _: ray_rollouts(batch_timeout="60"), "batch_timeout", "got '60'", SECONDS),
    M(lambda _: ray_rollouts(batch_timeout=1e10), "batch_timeout", "got 1000",
      "at most 2147483 seconds"),
    M(lambda _: ray_rollouts(attempts=-1), "attempts", "got -1", "an integer of at least 0"),
    M(lambda _: ray_rollouts(actor_options=5), "actor_options", "got 5", "a mapping"),
    M(lambda _: ray_servers(num_servers=0), "num_servers", "got 0", INT),
    M(lambda _: ray_servers(start_timeout=0), "start_timeout", "got 0", FOR_ALL),
    M(lambda _: Environments(never, [1]), "create_world_settings", "got [1]",
      "a mapping of names to values, or a function that returns one for an index"),
    # recordings
    M(lambda _: replayed(path=5), "path", "got 5", "must be a path"),
    M(lambda _: replayed(limits=5), "limits", "got 5", "must be a Limits"),
    M(lambda _: replayed(lenient="no"), "lenient", "got 'no'", FLAG),
    M(lambda _: replayed(transport="quic"), "transport", "'quic'", "choose one of"),
    M(lambda _: replayed(address=5), LISTEN, "got 5", "'localhost:5'?"),
    M(lambda _: replayed(insecure=None), "insecure", "got None", FLAG),
    M(lambda _: proxied(upstream=5), "a server address", "got 5", "'localhost:5'?"),
    M(lambda _: proxied(path=5), "path", "got 5", "must be a path"),
    M(lambda _: proxied(credentials="ca.pem"), "credentials", "got 'ca.pem'", "Tls(ca='ca.pem')"),
    M(lambda _: proxied(compression=9), "compression", "9", "choose one of 'zstd'"),
    M(lambda _: Recorder(5), "path", "got 5", "must be a path"),
    M(lambda _: read(5), "path", "got 5", "must be a path"),
    M(lambda _: read("a.mcap", 5), "limits", "got 5", "must be a Limits"),
    # bridges
    M(lambda _: socket_environment("localhost:1", "a", timeout="5"), "timeout", "got '5'", SECONDS),
    M(lambda _: socket_environment("localhost:1", "a", request_timeout=math.inf), "request_timeout",
      "got inf", FOR_ALL),
    M(lambda _: socket_environment("localhost:1", 5), "env_name", "got 5",
      "must be the name of an environment"),
    M(lambda _: socket_environment("localhost:1", "a", insecure="no"), "insecure", "got 'no'",
      FLAG),
    M(lambda _: socket_environment("localhost:1", "a", limits=Limits()), "limits", "got Limits(",
      "must be a Limits of dm_env_rpc_client.bridges.gym_socket"),
    M(lambda _: socket_environment("localhost:1", "a", dialect="old"), "dialect", "'old'",
      "choose one of 'first', 'latest'"),
    M(lambda _: socket_environment("localhost:1", "a", action_dtype="text"), "action_dtype",
      "got 'text'", "must be a numeric dtype"),
    M(lambda _: socket_environment("localhost:1", "a", observation_dtype=complex),
      "observation_dtype", "got the class complex", "must be a numeric dtype"),
    M(lambda _: serve_gym({"a": Catch}, "localhost:0", idle_timeout=-1), "idle_timeout", "got -1",
      FOR_ALL),
    M(lambda _: serve_gym({"a": Catch}, "localhost:0", handshake_timeout=math.nan),
      "handshake_timeout", "got nan", FOR_ALL),
    M(lambda _: serve_gym({"a": Catch}, "localhost:0", max_connections=0), "max_connections",
      "got 0", INT),
    M(lambda _: serve_gym({"a": Catch}, "localhost:0", wrap_universe=5), "wrap_universe", "got 5",
      "must be a function, or None to refuse the packet"),
    M(lambda _: serve_gym(Catch, "localhost:0"), "environments", "got the class Catch",
      "must be a mapping of names to callables"),
    M(lambda _: c_environment("a.so", "connect", request_timeout="5"), "request_timeout", "got '5'",
      SECONDS),
    M(lambda _: c_environment("a.so", "connect", isolated="yes"), "isolated", "got 'yes'", FLAG),
    M(lambda _: c_environment("a.so", "connect", settings=[1]), "settings", "got [1]", VALUES),
    M(lambda _: c_environment("a.so", "connect", frames_per_step="2"), "frames_per_step", "got '2'",
      "an integer from 1 to"),
    # tools
    M(lambda _: OptionsOf(timeout="5"), "timeout", "got '5'", "a number of seconds"),
    M(lambda _: OptionsOf(quiet_seconds=0), "quiet_seconds", "got 0", "more than 0"),
    M(lambda _: OptionsOf(seed=-1), "seed", "got -1", "an integer of at least 0"),
    M(lambda _: OptionsOf(several_agents="maybe"), "several_agents", "got 'maybe'",
      "must be yes or no"),
    M(lambda _: OptionsOf(reset_settings={"a": object()}), "setting 'a'", "object", ""),
    M(lambda _: OptionsOf(max_steps="9"), "max_steps", "got '9'", INT),
    M(lambda _: OptionsOf(strict="yes"), "strict", "got 'yes'", FLAG),
    M(lambda _: OptionsOf(create_settings=[1]), "create_settings", "got [1]", VALUES),
    M(lambda _: OptionsOf(required_create_settings="rows"), "required_create_settings",
      "got 'rows'", "must be a sequence of names"),
    M(lambda _: Proxy("nowhere"), "a TCP address", "got 'nowhere'", "looks like"),
    M(lambda _: Proxy("localhost:1", jitter=-0.1), "jitter", "got -0.1", FROM_0),
    M(lambda _: Proxy("localhost:1", slice_bytes=0), "slice_bytes", "got 0", INT),
    M(lambda _: Proxy("localhost:1", latency=math.nan), "latency", "got nan", FROM_0),
    M(lambda _: Proxy("localhost:1", bandwidth="1"), "bandwidth", "got '1'",
      "must be a finite number greater than 0, or None for no limit"),
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: f"{each.where}: {each.given}")
def test_a_mistake(mistake: M, catch: str) -> None:
    mistake.check(catch)
