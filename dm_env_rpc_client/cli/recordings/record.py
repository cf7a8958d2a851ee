"""The commands `dm-env-rpc record`, `replay` and `export`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import rich.filesize
import typer

from dm_env_rpc_client.cli import options
from dm_env_rpc_client.cli.consoles import cell, console, print_json, progress
from dm_env_rpc_client.cli.failures import what_stops
from dm_env_rpc_client.cli.group import examples
from dm_env_rpc_client.cli.recordings import inspecting as recorded

if TYPE_CHECKING:
    from dm_env_rpc_client.recording import Episode, Serving

RECORD_EXAMPLES = examples(
    "dm-env-rpc record run.mcap --upstream localhost:50051     # clients connect to :50052",
    "dm-env-rpc record run.mcap --upstream env.host:50051 --tls-ca ca.pem --token-file token",
    "dm-env-rpc record run.mcap --upstream python:my_module:Countdown",
)
EXPORT_EXAMPLES = examples(
    "dm-env-rpc export run.mcap --to minari catch/run-v0",
)
REPLAY_EXAMPLES = examples(
    "dm-env-rpc replay run.mcap                                # at localhost:50051",
    "dm-env-rpc replay run.mcap --address localhost:0 --json",
)

_PROGRESS_SECONDS = 0.5

Json = Annotated[bool, typer.Option("--json", help="Print the address as one line of JSON.")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Proxy(options.Access):
    """The proxy that runs between clients and a server.

    Attributes:
      path: Recording to write, which must not exist.
      upstream: Address of the server, such as localhost:50051; or process:COMMAND, docker:IMAGE or
        python:MODULE:NAME, to start one for this command.
      address: Address where clients connect, in plaintext; port 0 selects a free one.
      compression: Compression of the contents.
    """

    path: Annotated[Path, typer.Argument(metavar="FILE")]
    upstream: Annotated[str, typer.Option(metavar="ADDRESS")]
    address: Annotated[str, typer.Option(metavar="ADDRESS")] = "localhost:50052"
    compression: Literal["zstd", "lz4", "none"] = "zstd"


@options.with_options
def record(*, proxy: _Proxy, as_json: Json = False) -> None:
    """Record all requests and answers between clients and a server, until Ctrl-C or SIGTERM.

    Clients connect to this command, which forwards requests and answers unchanged. Metadata and
    tokens are forwarded, but not recorded. The security options are for the server.
    """
    from dm_env_rpc_client import recording

    path = proxy.path
    options.check_listening_address(proxy.address, options.Access(insecure=proxy.insecure))
    with options.Server(address=proxy.upstream, **proxy.flags()).ready() as server:
        server.check_address()
        running = recording.proxy(
            server.address,
            path,
            proxy.address,
            compression=proxy.compression,
            **proxy.secured(),
        )
        _serve(
            running,
            f"recording {proxy.upstream} to {path}; clients connect to",
            as_json,
            lambda: (
                f"clients: {running.clients}, requests: {running.requests}, "
                f"{rich.filesize.decimal(path.stat().st_size)}"
            ),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Replay(recorded.Reading):
    """The recording to serve and the address to listen on.

    Attributes:
      path: Recording to serve.
      address: Address to listen at; port 0 selects a free one.
      lenient: Answer deviating actions and settings as recorded, and log the first deviation.
    """

    path: Annotated[Path, typer.Argument(metavar="FILE")]
    address: Annotated[str, typer.Option(metavar="ADDRESS")] = "localhost:50051"
    insecure: bool = False
    lenient: bool = False


@options.with_options
def replay(*, served: _Replay, as_json: Json = False) -> None:
    """Serve a recording without its environment, until Ctrl-C or SIGTERM.

    The same requests get the same answers. A different request gets an error that describes both
    this request and the recorded one.
    """
    from dm_env_rpc_client import recording

    options.check_listening_address(served.address, options.Access(insecure=served.insecure))
    running = recording.replay(
        served.path,
        served.address,
        insecure=served.insecure,
        limits=served.limits,
        lenient=served.lenient,
    )
    _serve(running, f"replaying {served.path} at", as_json)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Export(recorded.Reading):
    """The source and the target of an export.

    Attributes:
      path: Recording to export.
      out: Id of the data set, such as catch/run-v0; it is stored in Minari's folder.
      to: Format of the episodes.
    """

    path: Annotated[Path, typer.Argument(metavar="FILE")]
    out: Annotated[str, typer.Argument(metavar="OUT")]
    to: Literal["minari"] = "minari"


@options.with_options
def export(*, wanted: _Export) -> None:
    """Export the episodes of a recording for other programs."""
    from rich.progress import TextColumn

    from dm_env_rpc_client.adaptors import minari

    path, out = wanted.path, wanted.out
    counts = TextColumn("{task.completed} episodes, {task.fields[steps]} steps")
    with progress(counts) as bar:
        task = bar.add_task(f"exporting {cell(path.name)}", total=None, steps=0)
        steps = 0

        def exported(episode: Episode) -> None:
            nonlocal steps
            steps += len(episode) - 1
            bar.update(task, advance=1, steps=steps)

        count = minari.export_minari(path, out, limits=wanted.limits, on_episode=exported)
    console.print(f"wrote {count} episodes to {cell(out)}")


def _serve(
    running: Serving, what: str, as_json: bool, progress: Callable[[], str] | None = None
) -> None:
    """Serve until a termination signal is received.

    Args:
      running: the server; stopped at the end.
      what: the activity, printed before the address.
      as_json: whether the address is printed as JSON.
      progress: returns the text to show on a terminal while the server runs.
    """
    with running:
        if as_json:
            print_json({"address": running.address})
        else:
            console.print(f"{cell(what)} [bold]{running.address}[/]; {what_stops()} stops")
        try:
            if progress is None or as_json or not console.is_terminal:
                running.wait()
                return
            with console.status(progress()) as status:
                while True:
                    if running.wait(_PROGRESS_SECONDS):
                        break
                    status.update(progress())
        except KeyboardInterrupt:
            console.print("stopping")
