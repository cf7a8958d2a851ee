"""Doors through which options come, with nothing behind them, and what mistakes are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import pytest

import dm_env_rpc_client
from dm_env_rpc_client import SpecError
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


# What is expected, as the texts say it.
SECONDS = "a number of seconds, or None for no limit"
NEVER = "a Restart, True for Restart(), or None or False for no restarts"
VALUES = "must be a mapping of names to values"
INT = "must be an integer of at least 1"
FLAG = "must be True or False"
LISTEN = "an address to listen on"
KEYS = "did you mean credentials=Tls(cert='server.crt', key='server.key')?"
FOR_ALL = "must be finite and more than 0, or None for no limit"
FROM_0 = "must be finite and at least 0"


class Mistake(NamedTuple):
    """A call that fails.

    Attributes:
      call: what the user does; it is called with the address of a server of Catch, or whatever its
        test passes.
      where: the argument or the method, as the text names it.
      given: what was given, as the text shows it.
      advice: what the text says to do, or what was expected.
      error: the class of the error.
    """

    call: Callable[..., Any]
    where: str
    given: str
    advice: str
    error: type[Exception] = SpecError

    def check(self, *arguments: object) -> None:
        """Makes the mistake, and compares the text of the error."""
        with pytest.raises(self.error) as caught:
            self.call(*arguments)
        text = str(caught.value)
        for part in (self.where, self.given, self.advice):
            assert part in text, f"{part!r} is missing from {text!r}"


M = Mistake
"""In long tables."""
