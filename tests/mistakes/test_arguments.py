"""Arguments of another type or out of range: errors when they are given, not hours later.

Servers to launch and addresses are such that a test fails if anything is started or sent.
"""

from __future__ import annotations

import asyncio
import fractions
import inspect
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import dm_env_rpc_client
from dm_env_rpc_client import Restart, SpecError, Tls, arguments, recording, server
from dm_env_rpc_client.environment.make_options import MakeOptions
from dm_env_rpc_client.server import Catch
from tests.mistakes.doors import DOORS, FLAG, NEVER, NOWHERE, SECONDS, VALUES, Mistake, never
from tests.support.stopwatch import time_limit

# Also what type checkers refuse.
rpc: Any = dm_env_rpc_client


class Wrong(NamedTuple):
    """A wrong argument: its kind as in `Door`, and what `Mistake` has."""

    kind: str
    name: str
    value: Any
    given: str
    advice: str


POSITIVE = "finite and more than 0, or None for no limit"
TLS = "must be a Tls, an ssl.SSLContext or grpc.ssl_channel_credentials(...), or None for plaintext"
NAMES = "must be a list of names, an AutoObservations, or None for the default"
EXTENSIONS = "must be a mapping of names to objects, or a function that makes one, or None"

WRONG: list[Wrong] = [
    Wrong("m", "restart", 5, "got 5", NEVER),
    Wrong("m", "restart", "yes", "got 'yes'", NEVER),
    Wrong("m", "restart", Restart, "got the class Restart", NEVER),
    Wrong("c", "request_timeout", "5", "got '5'", SECONDS),
    Wrong("c", "request_timeout", True, "got True", SECONDS),
    Wrong("c", "request_timeout", 0, "got 0", POSITIVE),
    Wrong("c", "keepalive_timeout", "5", "got '5'", "or None for the defaults"),
    Wrong("c", "keepalive_timeout", 0, "got 0", "finite and more than 0, or None for the defaults"),
    Wrong("cl", "timeout", [5], "got [5]", SECONDS),
    Wrong("cl", "timeout", -1, "got -1", POSITIVE),
    Wrong("cl", "timeout", math.nan, "got nan", POSITIVE),
    Wrong("cl", "timeout", math.inf, "got inf", POSITIVE),
    Wrong("cl", "timeout", 1e10, "got 10000000000.0", "at most 2147483 seconds (24 days), or None"),
    Wrong("cl", "timeout", np.float32(0), "got np.float32(0.0)", POSITIVE),
    Wrong("cl", "limits", 5, "got 5", "must be a Limits, or None for the defaults"),
    Wrong("cl", "limits", {"strings": 1}, "got {'strings': 1}", "must be a Limits"),
    Wrong("cl", "credentials", "ca.crt", "got 'ca.crt'", "credentials=Tls(ca='ca.crt')"),
    Wrong("cl", "credentials", Tls, "got the class Tls", TLS),
    Wrong("cl", "credentials", 7, "got int", TLS),
    Wrong("cl", "insecure", "no", "got 'no'", FLAG),
    Wrong("cl", "insecure", 1, "got 1", FLAG),
    Wrong("cl", "insecure", None, "got None", FLAG),
    Wrong("cl", "metadata", {"a": "b"}, "got dict", "(key, value) pairs, or None"),
    Wrong("cl", "metadata", "a=b", "got str", "must be a sequence of (key, value) pairs"),
    Wrong("cl", "metadata", [5], "pair 1 is int", "must be a sequence of (key, value) pairs"),
    Wrong("cl", "token", 5, "got int", "printable ASCII characters without spaces"),
    Wrong("cl", "token", "", "a token must", "printable ASCII characters without spaces"),
    Wrong("cl", "transport", "quic", "'quic'", "choose one of 'auto', 'grpc', 'http2'"),
    Wrong("cl", "transport", None, "None", "choose one of 'auto', 'grpc', 'http2'"),
    Wrong("r", "record", 5, "got 5", "must be a path, or a Recorder, or None"),
    Wrong("r", "record", "", "got ''", "must be a path"),
    Wrong("m", "python", 3.8, "got 3.8", "must be a path, or None for the interpreter of this"),
    Wrong("m", "adaptor_class", "Mine", "got 'Mine'", "must be a class"),
    Wrong("m", "extensions", [1], "got [1]", EXTENSIONS),
    Wrong("a", "requested_observations", "reward", "got 'reward'", NAMES),
    Wrong("a", "requested_observations", 3, "got 3", NAMES),
    Wrong("a", "requested_observations", [3], "got [3]", NAMES),
    Wrong("a", "nested_tensors", "no", "got 'no'", FLAG),
    Wrong("a", "unwrap_single", 0, "got 0", FLAG),
    Wrong("a", "arrays", "tf", "arrays='tf'", "expected one of 'numpy', 'torch', 'jax'"),
    Wrong("a", "device", "cuda", "device='cuda'", "pass arrays='torch' or 'jax'"),
    Wrong("w", "create_world_settings", [("rows", 6)], "got [('rows', 6)]", VALUES),
    Wrong("w", "create_world_settings", "rows=6", "got 'rows=6'", VALUES),
    Wrong("w", "join_world_settings", 5, "got 5", VALUES),
    Wrong("s", "create_world_settings", 5, "got 5", "must be a mapping, a sequence"),
    Wrong("s", "create_world_settings", "rows=6", "got 'rows=6'", "must be a mapping, a sequence"),
    Wrong("s", "num_envs", "4", "got '4'", "must be an integer of at least 1, or None"),
    Wrong("s", "num_envs", 2.5, "got 2.5", "must be an integer of at least 1, or None"),
    Wrong("s", "num_envs", True, "got True", "must be an integer of at least 1, or None"),
    Wrong("s", "num_batches", -1, "got -1", "must be an integer of at least 0, or None for as few"),
    Wrong("s", "num_batches", "2", "got '2'", "must be an integer of at least 0"),
    Wrong("s", "copy", "no", "got 'no'", FLAG),
]  # fmt: skip


def cases() -> Iterator[Any]:
    for door, (_, kinds) in DOORS.items():
        for wrong in WRONG:
            is_taken = set(kinds) & set(wrong.kind)
            if wrong.name == "timeout" and door == "create_secure_channel_and_connect":
                is_taken = {"c"}
            if door == "Remote-v0" and wrong.name == "extensions":
                is_taken = {"m"}
            if is_taken:
                yield pytest.param(door, wrong, id=f"{door}-{wrong.name}={wrong.value!r:.20}")


@pytest.mark.parametrize(("door", "wrong"), list(cases()))
def test_every_door_refuses_it_before_anything_is_sent_or_started(door: str, wrong: Wrong) -> None:
    mistake = Mistake(
        lambda: DOORS[door].open(**{wrong.name: wrong.value}), wrong.name, wrong.given,
        wrong.advice,
    )  # fmt: skip
    with time_limit(5.0):
        mistake.check()


def test_no_error_shows_what_may_be_a_secret() -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIIEvQ"
    for given in (
        {"credentials": key}, {"token": ["hunter2"]}, {"metadata": ["hunter2"]},
        {"metadata": "hunter2"}, {"credentials": "hunter2"}, {"token": b"hunter2"},
    ):  # fmt: skip
        with pytest.raises(SpecError) as caught:
            rpc.make(never, **given)
        assert "hunter2" not in str(caught.value)
        assert "MIIEvQ" not in str(caught.value)


def test_a_value_that_is_large_or_has_no_repr_is_shown_in_short() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise ZeroDivisionError

    for given in (Silent(), "x" * 10_000, list(range(10_000)), np.zeros((1000, 1000))):
        with pytest.raises(SpecError) as caught:
            rpc.make(never, restart=given)
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("given", "meant"),
    [(True, Restart()), (False, None), (None, None), (Restart(2), Restart(2))],
)
def test_true_is_a_restart(given: Any, meant: Restart | None) -> None:
    assert MakeOptions.of({"restart": given}).restart == meant


def test_a_mistake_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"
    for wrong in ({"timeout": -1}, {"restart": 5}, {"requested_observations": 3}):
        with pytest.raises(SpecError):
            rpc.make(NOWHERE, record=path, **wrong)
    proxy: Any = recording.proxy
    with pytest.raises(SpecError):
        proxy(NOWHERE, path, transport="quic")
    assert not path.exists()


def test_each_argument_has_a_row() -> None:
    rows = {wrong.name for wrong in WRONG}
    others = {"self", "address", "addresses", "make_kwargs"}
    for function in (rpc.make, rpc.connect, rpc.BatchedEnvironment.__init__):
        assert inspect.signature(function).parameters.keys() - others <= rows, function


# Also what type checkers refuse.
serve: Any = server.serve


GOOD_SECONDS = [
    5, 5.0, np.float32(5), np.float64(5), np.float16(5), np.int8(5), np.uint64(5),
    fractions.Fraction(5), arguments.MOST_SECONDS, None,
]  # fmt: skip


@pytest.mark.parametrize("transport", ["http2", "grpc"])
@pytest.mark.parametrize("seconds", GOOD_SECONDS, ids=repr)
def test_numbers_of_python_and_numpy_are_times_on_both_transports(
    catch: str, transport: str, seconds: Any
) -> None:
    times = {"timeout": seconds, "request_timeout": seconds, "keepalive_timeout": seconds}
    with rpc.make(catch, transport=transport, **times) as env:
        assert env.reset().first()
    with rpc.connect(catch, transport=transport, **times) as connection:
        connection.send(rpc.dm_env_rpc_pb2.LeaveWorldRequest(), seconds)
        with connection.reopen(seconds) as other:
            other.send(rpc.dm_env_rpc_pb2.LeaveWorldRequest())
    with rpc.BatchedEnvironment(catch, np.int64(2), transport=transport, **times) as envs:
        assert envs.reset().first().all()

    async def run() -> None:
        async with await rpc.make_async(catch, transport=transport, **times) as env:
            assert (await env.reset()).first()
        async with await rpc.connect_async(catch, transport=transport, **times) as connection:
            await connection.send(rpc.dm_env_rpc_pb2.LeaveWorldRequest(), seconds)

    asyncio.run(run())


@pytest.mark.parametrize("seconds", [0, 0.0, np.float32(0), np.int64(0)], ids=repr)
def test_a_grace_and_a_look_may_take_no_time(seconds: Any) -> None:
    with server.serve(Catch, idle_world_seconds=seconds) as running:
        assert not running.wait(seconds)
        running.stop(seconds)
        assert running.wait(seconds)


def test_numbers_of_numpy_are_counts() -> None:
    options: Any = {
        "max_connections": np.int64(2),
        "max_worlds": np.uint8(1),
        "step_timeout": np.float32(5),
        "limits": rpc.Limits(strings=np.int32(1000)),
        "insecure": np.True_,
    }
    with serve(Catch, **options) as running, rpc.make(running.address) as env:
        assert env.reset().first()
        with pytest.raises(rpc.DmEnvRpcError, match="1"):
            rpc.make(running.address)
