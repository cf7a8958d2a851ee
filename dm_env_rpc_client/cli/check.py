"""`dm-env-rpc check`."""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import rich.console
import rich.markup
import typer

from dm_env_rpc_client.cli import options
from dm_env_rpc_client.cli.consoles import Console, console, print_json, progress
from dm_env_rpc_client.cli.failures import REFUSED, UsageError, ending
from dm_env_rpc_client.cli.group import examples
from dm_env_rpc_client.compliance.options import FLAGS, Kind, Options

if TYPE_CHECKING:
    from dm_env_rpc_client.compliance import Result

EXAMPLES = examples(
    "dm-env-rpc check localhost:50051",
    "dm-env-rpc check localhost:50051 --invalid-create rows=-1 --reset rows=6 --one-agent",
    "dm-env-rpc check localhost:50051 --only reset --json",
)

_STYLES = {
    "passed": "green",
    "failed": "bold red",
    "warned": "bold yellow",
    "skipped": "yellow",
}

# Types of the parameters that are not strings.
_TYPES: dict[Kind, Any] = {
    Kind.SETTINGS: list[str] | None,
    Kind.NAMES: list[str] | None,
    Kind.COUNT: int,
    Kind.SECONDS: float,
    Kind.YES_OR_NO: bool | None,
    Kind.SWITCH: bool,
}

_Server: Any = dataclasses.make_dataclass(
    "_Server",
    [
        (
            field,
            Annotated[_TYPES.get(flag.kind, str | None), options.option(field)],
            dataclasses.field(default=getattr(Options, field, None)),
        )
        for field, flag in FLAGS.items()
    ],
    bases=(options.Server,),
    frozen=True,
    kw_only=True,
)
"""The server to check and the options of the compliance suite."""


@options.with_options
def check(
    *,
    server: _Server,
    only: Annotated[
        str, typer.Option(metavar="TEXT", help="Run only checks with TEXT in their name.")
    ] = "",
    as_json: options.Json = False,
) -> None:
    """Check a server against the protocol, and exit with code 1 if a check fails.

    A failure breaks clients that follow the protocol; a warning does not.
    Warnings leave the exit code at 0, unless --strict makes them failures.
    """
    from dm_env_rpc_client.compliance import Outcome

    results = _run(server, only, as_json)
    counts = collections.Counter(result.outcome for result in results)
    if as_json:
        print_json(
            {
                "address": server.address,
                **{outcome.value: counts[outcome] for outcome in Outcome},
                "checks": [result.as_json() for result in results],
            }
        )
    else:
        Console().print(", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome))
    if counts[Outcome.FAILED]:
        raise typer.Exit(REFUSED)


def _run(server: options.Server, only: str, as_json: bool) -> list[Result]:
    from rich.progress import MofNCompleteColumn

    from dm_env_rpc_client.compliance import CHECKS, run

    suite = Options.from_flags({field: getattr(server, field) for field in FLAGS})
    checks = [check for check in CHECKS if only in check.name]
    if not checks:
        raise UsageError(f"no check has {only!r} in its name")
    # A failed connection is one error with its own exit code, not a failure of every check.
    with server.connection():
        pass
    names = {check.name for check in checks}
    results: list[Result] = []
    came: list[BaseException] = []
    out = Console(soft_wrap=True, highlight=False)
    # If both are terminals, results go through the console that redraws the bar.
    screen = out if out.is_terminal else console
    lines = _Lines(out)
    with progress(MofNCompleteColumn(), screen=screen, is_shown=not as_json) as bar:
        task = bar.add_task(f"checking {server.address}", total=len(checks))

        def end(error: BaseException) -> None:
            # The running check may clean up at the server, unless a second signal comes.
            came.append(error)
            if len(came) > 1:
                raise error
            if screen.is_terminal:
                screen.print("stopping after the running check; a second signal stops at once")

        with ending(end):
            for result in run(server.address, suite, checks):
                results.append(result)
                if not as_json:
                    lines.add(result)
                if came:
                    raise came[0]
                bar.update(task, completed=sum(each.name in names for each in results))
        lines.end()
    return results


class _Lines:
    """Prints results, and condenses consecutive skips that have the same reason.

    Args:
      out: the console.
    """

    def __init__(self, out: rich.console.Console):
        self._out = out
        self._reason = ""
        self._more = 0

    def add(self, result: Result) -> None:
        """Print a result, or only count it if it is another skip for the same reason."""
        outcome = result.outcome.value
        if outcome == "skipped" and result.reason == self._reason:
            self._more += 1
            return
        self.end()
        self._reason = result.reason if outcome == "skipped" else ""
        head, *rest = str(result).split("\n")
        detail = head.partition(": ")[2].removeprefix(outcome)
        self._print(outcome, "\n".join([f"{result.name}{detail}", *rest]))

    def end(self) -> None:
        """Print the number of skips that were counted but not printed."""
        if self._more:
            self._print("skipped", f"{self._more} more, for the same reason")
        self._reason, self._more = "", 0

    def _print(self, outcome: str, text: str) -> None:
        # In one call, because each call redraws the progress bar.
        self._out.print(f"[{_STYLES[outcome]}]{outcome:7}[/] {rich.markup.escape(text)}")
