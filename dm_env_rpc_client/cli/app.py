"""The command-line program, with all its commands, `--version` and `-h`."""

from __future__ import annotations

from typing import Annotated

import typer

from dm_env_rpc_client.cli import check, health, init, inspect, play
from dm_env_rpc_client.cli.group import Commands, examples
from dm_env_rpc_client.cli.properties import commands as properties
from dm_env_rpc_client.cli.recordings import record
from dm_env_rpc_client.cli.serving import serve
from dm_env_rpc_client.cli.stepping import bench, run
from dm_env_rpc_client.version import __version__

app = typer.Typer(
    cls=Commands,
    help=(
        "Serve, inspect, test, measure and play remote reinforcement-learning environments "
        "over the dm_env_rpc protocol.\n\n"
        "ADDRESS is the address of a server, such as localhost:50051. Each command has its own "
        "--help with examples.\n\n"
        "Exit codes: 0 success; 1 the server refused a request, broke the protocol or failed a "
        "check; 2 wrong usage; 3 no connection, or no answer in time; 70 a bug in dm-env-rpc; "
        "130 interrupted; 143 terminated."
    ),
    epilog=examples(
        "dm-env-rpc run                            # random episodes of Catch, an example game",
        "dm-env-rpc play                           # play Catch in a window",
        "dm-env-rpc serve catch                    # serve Catch at localhost:50051",
        "dm-env-rpc inspect localhost:50051        # show its actions and observations",
        "dm-env-rpc check localhost:50051          # test it against the protocol",
    ),
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"dm-env-rpc {__version__}")
        raise typer.Exit


@app.callback()
def _options_of_all_commands(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


app.command("run", epilog=run.EXAMPLES)(run.run)
app.command("serve", epilog=serve.EXAMPLES)(serve.serve)
app.command("standalone", epilog=init.STANDALONE_EXAMPLES)(init.standalone)
app.command("init", epilog=init.INIT_EXAMPLES)(init.init)
app.command("inspect", epilog=inspect.EXAMPLES)(inspect.inspect)
app.command("play", epilog=play.EXAMPLES)(play.play)
app.add_typer(
    properties.app,
    name="properties",
    help="List, read and write properties of a server or world.",
)
app.command("check", epilog=check.EXAMPLES)(check.check)
app.command("health", epilog=health.EXAMPLES)(health.health)
app.command("bench", epilog=bench.EXAMPLES)(bench.bench)
app.command("record", epilog=record.RECORD_EXAMPLES)(record.record)
app.command("replay", epilog=record.REPLAY_EXAMPLES)(record.replay)
app.command("export", epilog=record.EXPORT_EXAMPLES)(record.export)
