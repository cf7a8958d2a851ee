"""`dm-env-rpc play`."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Annotated

import rich.console
import typer

from dm_env_rpc_client.cli import arguments
from dm_env_rpc_client.cli.failures import UsageError
from dm_env_rpc_client.cli.group import examples

if TYPE_CHECKING:
    from dm_env_rpc_client.cli.playing.bindings import Binding
    from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor

__all__ = ["EXAMPLES", "play"]

EXAMPLES = examples(
    "dm-env-rpc play                                   # Catch, an example game",
    "dm-env-rpc play localhost:50051 --create rows=6",
    "dm-env-rpc play localhost:50051 --rate 10 --keys a=0 --keys d=2 --keys idle=1",
    "dm-env-rpc play localhost:50051 --keys w=throttle:+=0.1 --keys s=throttle:-=0.1",
)


def _check_rate(rate: float | None) -> float | None:
    if rate is not None and not 0 < rate <= 1000:
        raise typer.BadParameter(
            f"steps per second must be more than 0 and at most 1000, got {rate:g}"
        )
    return rate


@arguments.with_access
def play(
    address: Annotated[
        str | None,
        typer.Argument(
            metavar="ADDRESS",
            help="Address of the server, such as localhost:50051. If not given, the command "
            "starts a server of Catch, an example game.",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="STEPS/S",
            callback=_check_rate,
            help="Steps per second, for a game in real time. If not given, every step waits "
            "for a key.",
        ),
    ] = None,
    keys: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=[ACTION:]VALUE",
            help="Binds a key to a value of an action. KEY is a character, left, right, up, down, "
            "space, enter, tab, backspace, escape, or idle for the value while no key is pressed. "
            "ACTION is only needed if there are several. += or -= before VALUE adds or subtracts. "
            "Repeatable.",
        ),
    ] = None,
    create: arguments.CreateSettings = None,
    join: arguments.JoinSettings = None,
    world: arguments.World = None,
    timeout: arguments.Timeout = 10.0,
    *,
    access: arguments.Access,
) -> None:
    """Plays an environment in this terminal with the keyboard.

    An action with few values is chosen by digits, or by arrow keys if it has 2 to 5; + and -
    change other numbers. Space takes a step, r resets, q quits. The screen shows all keys.
    """
    create_settings = arguments.parse_settings(create)
    join_settings = arguments.parse_settings(join)
    console = _terminal()
    from dm_env_rpc_client.cli.embedded import catch_server
    from dm_env_rpc_client.cli.playing.bindings import parse_binding

    bindings = [parse_binding(text) for text in keys or []]
    with contextlib.ExitStack() as stack:
        if address is None:
            with arguments.waiting("starting Catch"):
                address = stack.enter_context(catch_server())
            access = arguments.Access()  # The flags are for servers that others started.
        env = stack.enter_context(
            arguments.open_environment(
                address, create_settings, join_settings, world, timeout, access
            )
        )
        summary = _play(env, address, console, bindings, rate)
    typer.echo(summary)


def _terminal() -> rich.console.Console:
    """Returns the terminal; UsageError if there is none, or if it cannot move its cursor."""
    try:
        import termios  # noqa: F401  # not everywhere
    except ImportError:
        raise UsageError(
            "play needs a terminal of a POSIX system, such as Linux or macOS"
        ) from None
    for stream, name in ((sys.stdin, "input"), (sys.stdout, "output")):
        if not stream.isatty():
            raise UsageError(
                f"play needs a terminal, but the standard {name} is not one; dm-env-rpc run needs "
                "none"
            )
    console = rich.console.Console(highlight=False)
    if console.is_dumb_terminal:
        raise UsageError(
            f"play needs a terminal that can move its cursor, but TERM is {os.environ['TERM']!r}; "
            "set it to the type of the terminal, such as xterm-256color"
        )
    return console


def _play(
    env: DmEnvAdaptor,
    title: str,
    console: rich.console.Console,
    bindings: list[Binding],
    rate: float | None,
) -> str:
    from dm_env_rpc_client.cli.playing.keyboard import Keyboard
    from dm_env_rpc_client.cli.playing.play_loop import PlayLoop
    from dm_env_rpc_client.cli.playing.screen import Screen

    screen = Screen(console)
    keyboard = Keyboard(screen.hide, screen.show)
    loop = PlayLoop(env, title, bindings, rate, screen, keyboard)
    with keyboard, screen:
        loop.play()
    return (
        f"{loop.view.episode} episodes, {loop.view.total_steps} steps; "
        f"return of the last episode: {loop.view.episode_return:g}"
    )
