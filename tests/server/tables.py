"""Agents of one world of a game, which step at once or on their own."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Iterator
from typing import Any

import dm_env

from dm_env_rpc_client import Connection, DmEnvAdaptor, connect, create_world, join_world
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.server import Game, Server, serve


class Table:
    """Agents, each with a connection of its own, and a spectator."""

    def __init__(self, stack: contextlib.ExitStack, server: Server, **settings: Any):
        self._stack, self.server = stack, server
        self.threads = stack.enter_context(concurrent.futures.ThreadPoolExecutor(8))
        self.spectator = stack.enter_context(connect(server.address, request_timeout=30))
        self.world = create_world(self.spectator, settings)
        self.connections: list[Connection] = []
        self.envs: list[DmEnvAdaptor] = []

    def join(self) -> DmEnvAdaptor:
        self.connections.append(self._stack.enter_context(self.spectator.reopen()))
        self.envs.append(join_world(self.connections[-1], self.world))
        self._stack.callback(self.envs[-1].close)
        return self.envs[-1]

    def step(self, *actions: Any) -> list[dm_env.TimeStep]:
        """Everybody steps at once."""
        pairs = zip(self.envs, actions, strict=True)
        return [each.result(30) for each in [self.threads.submit(e.step, a) for e, a in pairs]]

    def waiting_for(self) -> str:
        """What steps wait for."""
        return str(PropertiesExtension(self.spectator).read(f"waiting_for.{self.world}"))


@contextlib.contextmanager
def table(
    count: int, game: type[Game], step_timeout: float = 20.0, **settings: Any
) -> Iterator[tuple[Table, list[DmEnvAdaptor]]]:
    with serve(game, step_timeout=step_timeout) as server, contextlib.ExitStack() as stack:
        made = Table(stack, server, **settings)
        yield made, [made.join() for _ in range(count)]
