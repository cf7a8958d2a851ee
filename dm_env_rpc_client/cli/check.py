"""`dm-env-rpc check`."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Annotated, Any

import rich.console
import rich.markup
import typer

from dm_env_rpc_client.cli import arguments
from dm_env_rpc_client.cli.failures import REFUSED, UsageError, console
from dm_env_rpc_client.cli.group import examples

if TYPE_CHECKING:
    from dm_env_rpc_client.compliance import Options, Outcome, Result

__all__ = ["EXAMPLES", "check"]

EXAMPLES = examples(
    "dm-env-rpc check localhost:50051",
    "dm-env-rpc check localhost:50051 --invalid-create rows=-1 --reset rows=6 --one-agent",
    "dm-env-rpc check localhost:50051 --only reset --json",
)

Settings = list[str] | None

_STYLES = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


def _settings(option: str, what: str) -> Any:
    return typer.Option(option, metavar="NAME=VALUE", help=f"{what}; repeatable.")


def check(
    address: arguments.Address,
    create: arguments.CreateSettings = None,
    invalid_create: Annotated[
        Settings, _settings("--invalid-create", "A create setting to be refused")
    ] = None,
    required_create: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A create setting that cannot be left out; repeatable."),
    ] = None,
    join: arguments.JoinSettings = None,
    invalid_join: Annotated[
        Settings, _settings("--invalid-join", "A join setting to be refused")
    ] = None,
    reset: Annotated[Settings, _settings("--reset", "A setting of a Reset")] = None,
    invalid_reset: Annotated[
        Settings, _settings("--invalid-reset", "A reset setting to be refused")
    ] = None,
    reset_world: Annotated[Settings, _settings("--reset-world", "A ResetWorld setting")] = None,
    world: Annotated[
        str | None, typer.Option(help="A world that exists; none is created then.")
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            "-p",
            autocompletion=arguments.complete_policy,
            help="random, constant or MODULE:FUNCTION.",
        ),
    ] = "random",
    seed: Annotated[int, typer.Option(help="Of the random policy.")] = 0,
    several_worlds: Annotated[
        bool | None,
        typer.Option(
            "--several-worlds/--one-world",
            help="Whether several worlds can exist at once; found out where not given.",
        ),
    ] = None,
    several_agents: Annotated[
        bool | None,
        typer.Option(
            "--several-agents/--one-agent",
            help="Whether a world takes several agents; found out where not given.",
        ),
    ] = None,
    companions: Annotated[
        int,
        typer.Option(min=0, help="How many more agents a world waits for; they act on their own."),
    ] = 0,
    max_steps: Annotated[
        int, typer.Option(min=1, help="Steps to wait for the end of a sequence.")
    ] = 200,
    only: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only checks with this in their name.")
    ] = None,
    timeout: arguments.Timeout = 10.0,
    insecure: arguments.Insecure = False,
    as_json: arguments.Json = False,
) -> None:
    """Checks a server, in any language, against the protocol; exit code 1 if any check fails."""
    from dm_env_rpc_client.cli.results import print_json
    from dm_env_rpc_client.compliance import Options, Outcome

    options = Options(
        create_settings=arguments.parse_settings(create),
        invalid_create_settings=arguments.parse_settings(invalid_create),
        required_create_settings=tuple(required_create or ()),
        join_settings=arguments.parse_settings(join),
        invalid_join_settings=arguments.parse_settings(invalid_join),
        reset_settings=arguments.parse_settings(reset),
        invalid_reset_settings=arguments.parse_settings(invalid_reset),
        reset_world_settings=arguments.parse_settings(reset_world),
        world_name=world,
        policy=policy,
        seed=seed,
        several_worlds=several_worlds,
        several_agents=several_agents,
        companions=companions,
        max_steps=max_steps,
        timeout=timeout,
        insecure=insecure,
    )
    results = _run(address, options, only or "", as_json)
    counts = collections.Counter(dict.fromkeys(Outcome, 0))
    counts.update(result.outcome for result in results)
    if as_json:
        print_json(_summary(address, results, counts))
    else:
        rich.console.Console().print(
            ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome)
        )
    if counts[Outcome.FAILED]:
        raise typer.Exit(REFUSED)


def _run(address: str, options: Options, only: str, as_json: bool) -> list[Result]:
    import rich.progress

    from dm_env_rpc_client.compliance import CHECKS, run

    checks = [check for check in CHECKS if only in check.name]
    if not checks:
        raise UsageError(f"no check has {only!r} in its name")
    # One error with its own exit code, instead of a failure of every check.
    with arguments.open_connection(address, options.timeout, options.insecure):
        pass
    results = []
    out = rich.console.Console(soft_wrap=True, highlight=False)
    with rich.progress.Progress(
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=as_json or not console.is_terminal,
    ) as progress:
        task = progress.add_task(f"checking {address}", total=len(checks))
        for result in run(address, options, checks):
            results.append(result)
            progress.advance(task)
            if not as_json:
                _print(out, result)
    return results


def _print(out: rich.console.Console, result: Result) -> None:
    head, *rest = str(result).split("\n")
    _, _, what = head.partition(": ")
    style = _STYLES[result.outcome.value]
    out.print(f"[{style}]{result.outcome.value:7}[/] {rich.markup.escape(result.name)}", end="")
    detail = what.removeprefix(result.outcome.value)
    out.print(rich.markup.escape(detail))
    for line in rest:
        out.print(rich.markup.escape(line))


def _summary(
    address: str, results: list[Result], counts: collections.Counter[Outcome]
) -> dict[str, Any]:
    return {
        "address": address,
        **{outcome.value: count for outcome, count in counts.items()},
        "checks": [result.as_json() for result in results],
    }
