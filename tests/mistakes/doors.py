"""The doors through which options of environments and connections come; nothing is behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium

import dm_env_rpc_client
from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.distributed import RemoteEnvironments
from dm_env_rpc_client.launch import Launch, from_process

NOWHERE = "unix:/there/is/no/such/socket"
REMOTE = "dm_env_rpc_client.gymnasium:Remote-v0"

# Also what type checkers refuse.
rpc: Any = dm_env_rpc_client
process: Any = from_process
VectorEnv: Any = RemoteVectorEnv
ParallelEnv: Any = RemoteParallelEnv


def never() -> Launch:
    """A server that must not be started."""
    raise AssertionError("a server is started before the arguments are checked")


def awaited(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        async def run() -> Any:
            return await function(*args, **kwargs)

        return asyncio.run(run())

    return call


make_async = awaited(rpc.make_async)
connect_async = awaited(rpc.connect_async)


class Door(NamedTuple):
    """A function that makes environments or connections, at an address where nothing answers."""

    open: Callable[..., Any]
    kinds: str
    """Which arguments it takes: those to (c)onnect, to (r)ecord, to (m)ake and to (a)dapt, for
    (s)everal, their (w)orlds as sequences, too, and of (l)aunches."""


DOORS: dict[str, Door] = {
    "make": Door(lambda **given: rpc.make(never, **given), "crmaw"),
    "make_async": Door(lambda **given: make_async(never, **given), "crmaw"),
    "connect": Door(lambda **given: rpc.connect(NOWHERE, **given), "cr"),
    "connect_async": Door(lambda **given: connect_async(NOWHERE, **given), "cr"),
    "BatchedEnvironment": Door(lambda **given: rpc.BatchedEnvironment(never, **given), "crmas"),
    "RemoteVectorEnv": Door(lambda **given: VectorEnv([never], **given), "crms"),
    "Remote-v0": Door(lambda **given: gymnasium.make(REMOTE, address=never, **given), "crmaw"),
    "make_vec": Door(lambda **given: gymnasium.make_vec(REMOTE, address=never, **given), "crm"),
    "RemoteParallelEnv": Door(lambda **given: ParallelEnv(never, ["a"], **given), "crmw"),
    "RemoteEnvironments": Door(lambda **given: RemoteEnvironments(never, **given), "crm"),
    "from_process": Door(lambda **given: process(["/no/such", "{port}"], **given), "cl"),
    "create_secure_channel_and_connect": Door(
        lambda **given: rpc.create_secure_channel_and_connect(NOWHERE, **given), ""
    ),
}
