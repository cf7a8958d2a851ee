"""`dm-env-rpc play`."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dm_env_rpc_client.cli import options
from dm_env_rpc_client.cli.consoles import Console, print_text
from dm_env_rpc_client.cli.failures import DEFECT, UsageError, ending
from dm_env_rpc_client.cli.group import examples
from dm_env_rpc_client.errors import DmEnvRpcClientError
from dm_env_rpc_client.extras import importing

if TYPE_CHECKING:
    from dm_env_rpc_client.cli.playing.panel import Binding
    from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor

EXAMPLES = examples(
    "dm-env-rpc play                                   # Catch, an example game",
    "dm-env-rpc play localhost:50051 --create rows=6",
    "dm-env-rpc play localhost:50051 --create num_envs=4 --row 2    # of a batch",
    "dm-env-rpc play localhost:50051 --rate 10 --keys a=0 --keys d=2 --keys idle=1",
    "dm-env-rpc play localhost:50051 --keys w=throttle:+=0.1 --keys s=throttle:-=0.1",
)


_ASK_SECONDS = 2.0
"""How long a server may take to list its properties."""


def _check_rate(rate: float | None) -> float | None:
    if rate is not None and not 0 < rate <= 1000:
        raise typer.BadParameter(
            f"steps per second must be more than 0 and at most 1000, got {rate:g}"
        )
    return rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Playing(options.Group):
    """How it is played.

    Attributes:
      rate: Steps per second, for a game in real time. If not given, every step waits for a key.
      keys: Binds a key to a value of an action. KEY is a character, left, right, up, down, space,
        enter, tab, backspace, escape, or idle for the value while no key is pressed. ACTION is
        only needed if there are several. += or -= before VALUE adds or subtracts. Repeatable.
      row: Row of a batched world that is shown and played.
    """

    rate: Annotated[float | None, typer.Option(metavar="STEPS/S", callback=_check_rate)] = None
    keys: Annotated[list[str] | None, typer.Option(metavar="KEY=[ACTION:]VALUE")] = None
    row: Annotated[int, typer.Option(min=0, metavar="N")] = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class _World(options.WorldOrCatch):
    """A world, whose steps may take any time.

    Attributes:
      timeout: Timeout in seconds for connecting. Steps may take longer, for instance until all
        players have joined.
    """


@options.with_options
def play(*, playing: _Playing, world: _World) -> None:
    """Plays an environment in this terminal with the keyboard. Needs the extra play.

    An action with few values is chosen by digits, or by arrow keys if it has 2 to 5; + and -
    change other numbers. Space takes a step, r resets, q quits. The screen shows all keys.
    Images are shown as such if the terminal can, otherwise as characters. Of a batched world it
    shows one row; all rows take the same actions.
    """
    _check_terminal()
    from dm_env_rpc_client.cli.playing.panel import parse_binding

    bindings = [parse_binding(text) for text in playing.keys or []]
    _check_extra()
    # Answers may take any time, for instance until other players have acted.
    with world.environment(request_timeout=None) as env:
        summary = _play(env, world.address, bindings, playing, _has_properties(world))
    print_text(summary)


def _check_terminal() -> None:
    """Raises UsageError if there is no terminal, or if it cannot move its cursor."""
    for stream, name in (
        (sys.stdin, "input"),
        (sys.stdout, "output"),
        (sys.stderr, "error"),  # Textual writes to it.
    ):
        if not stream.isatty():
            raise UsageError(
                f"play needs a terminal, but the standard {name} is not one; dm-env-rpc run needs "
                "none"
            )
    if Console().is_dumb_terminal:
        raise UsageError(
            f"play needs a terminal that can move its cursor, but TERM is {os.environ['TERM']!r}; "
            "set it to the type of the terminal, such as xterm-256color"
        )


def _check_extra() -> None:
    """Imports what only `play` needs; ModuleNotFoundError if it is missing."""
    with importing("play", "play needs"):
        # Asks the terminal whether it shows images.
        import dm_env_rpc_client.cli.playing.app  # noqa: F401


def _has_properties(server: options.Server) -> bool:
    """Whether a server answers requests for properties.

    Asked over a connection of its own, since a server that knows none may end the connection.
    """
    from dm_env_rpc_client.extensions.properties import PropertiesExtension

    try:
        with server.connection(timeout=_ASK_SECONDS, request_timeout=_ASK_SECONDS) as connection:
            PropertiesExtension(connection).list()
    except DmEnvRpcClientError:
        return False
    return True


def _play(
    env: DmEnvAdaptor,
    title: str,
    bindings: list[Binding],
    playing: _Playing,
    has_properties: bool,
) -> str:
    """Plays until the player quits, and returns how it went."""
    from dm_env_rpc_client.cli.playing.app import PlayApp
    from dm_env_rpc_client.cli.playing.player import Player
    from dm_env_rpc_client.cli.stepping.watch import Watch

    with Watch(env) as watch:
        player = Player(env, has_properties, watch, playing.row)
        if player.rows is not None:
            title = f"{title}, row {player.rows[0]} of {player.rows[1]}"
        app = PlayApp(player, title, bindings, playing.rate)
        with ending(app.end_soon):
            error = app.run(mouse=False)
    if error is not None:
        raise error
    if app.return_code:
        # Textual has shown why.
        raise typer.Exit(DEFECT)
    return player.summary()
