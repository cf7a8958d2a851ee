"""The commands together."""

from __future__ import annotations

import typer

from dm_env_rpc_client.cli import bench, check, inspect, play, properties, run, serve
from dm_env_rpc_client.cli.group import Commands, examples

__all__ = ["app"]

app = typer.Typer(
    cls=Commands,
    help=(
        "Remote reinforcement-learning environments over dm_env_rpc: serve them, look at them, "
        "run agents in them and play them.\n\n"
        "An address looks like localhost:50051. Every command has a --help of its own, with "
        "examples.\n\n"
        "Exit codes: 0 all went well; 1 the server refused or broke the protocol, or a check "
        "failed; 2 wrong usage; 3 no connection, or no answer in time; 130 interrupted."
    ),
    epilog=examples(
        "dm-env-rpc run                            # random episodes of Catch, a small game",
        "dm-env-rpc play                           # the same in this terminal, by keys",
        "dm-env-rpc serve catch                    # a server at localhost:50051",
        "dm-env-rpc inspect localhost:50051        # its actions and observations",
        "dm-env-rpc check localhost:50051          # does it keep to the protocol?",
    ),
    pretty_exceptions_enable=False,
)
app.command("run", epilog=run.EXAMPLES)(run.run)
app.command("serve", epilog=serve.EXAMPLES)(serve.serve)
app.command("inspect", epilog=inspect.EXAMPLES)(inspect.inspect)
app.command("play", epilog=play.EXAMPLES)(play.play)
app.add_typer(properties.app, name="properties", help="Reads, writes and lists properties.")
app.command("check", epilog=check.EXAMPLES)(check.check)
app.command("bench", epilog=bench.EXAMPLES)(bench.bench)
