"""Games in the application without a terminal: keys that are pressed, and what is shown."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import rich.console
from textual.pilot import Pilot

from dm_env_rpc_client.cli.playing.app import PlayApp
from dm_env_rpc_client.cli.playing.panel import parse_binding
from dm_env_rpc_client.cli.playing.player import Player
from dm_env_rpc_client.cli.stepping.watch import Watch
from dm_env_rpc_client.client.connection import connect
from dm_env_rpc_client.environment.worlds import join_world, make
from dm_env_rpc_client.server import Game as ServedGame
from dm_env_rpc_client.server import Server, serve
from tests.support.scripted import settles_async


def in_event_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Makes a test of a coroutine."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 60))

    return run


class Game:
    """A running application.

    Attributes:
      app: the application.
      server: the server that it plays at.
    """

    def __init__(self, app: PlayApp, pilot: Pilot[Any], server: Server):
        self.app = app
        self.server = server
        self._pilot = pilot

    async def press(self, *keys: str) -> None:
        """Presses keys, by Textual's names."""
        await self._pilot.press(*keys)

    async def resize(self, columns: int, rows: int) -> None:
        """Gives the screen another size."""
        await self._pilot.resize_terminal(columns, rows)

    def screen(self) -> str:
        """What can be read on the screen."""
        shown = rich.console.Console(
            file=io.StringIO(), width=self.app.size.width, height=self.app.size.height, record=True
        )
        shown.print(self.app.screen._compositor)
        return "\n".join(map(str.rstrip, shown.export_text().splitlines()))

    async def sees(self, pattern: str) -> str:
        """Returns the screen once it matches a pattern; fails if it never does."""
        found = await settles_async(lambda: re.search(pattern, self.screen()) is not None)
        assert found, f"never saw {pattern!r} but:\n{self.screen()}"
        return self.screen()

    async def ends(self) -> BaseException | None:
        """Waits until the application has ended, and returns its error."""
        assert await settles_async(lambda: not self.app.is_running), "the application goes on"
        return self.app.return_value


@contextlib.asynccontextmanager
async def playing(
    environment: Any,
    *,
    create: Mapping[str, Any] | None = None,
    keys: Sequence[str] = (),
    rate: float | None = None,
    row: int = 0,
    size: tuple[int, int] = (90, 30),
) -> AsyncIterator[Game]:
    """Plays an environment, or the world of a game, of a real server, as the command does."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serve(environment))
        if isinstance(environment, ServedGame):
            connection = stack.enter_context(connect(server.address))
            env = stack.enter_context(join_world(connection, ""))
        else:
            env = stack.enter_context(make(server.address, create or {}))
        player = Player(env, True, stack.enter_context(Watch(env)), row)
        app = PlayApp(player, server.address, [parse_binding(key) for key in keys], rate)
        async with app.run_test(size=size) as pilot:
            yield Game(app, pilot, server)
