"""The commands together."""

from __future__ import annotations

import typer

from dm_env_rpc_client.cli import inspect, run, serve

__all__ = ["app"]

app = typer.Typer(
    help=(
        "Remote reinforcement-learning environments over dm_env_rpc: serve them, look at them, "
        "run agents in them.\n\n"
        "Exit codes: 0 all went well, 1 the server refused or broke the protocol, 2 wrong usage, "
        "3 no connection or no answer in time."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("run")(run.run)
app.command("serve")(serve.serve)
app.command("inspect")(inspect.inspect)
