"""`dm-env-rpc check`."""

from __future__ import annotations

import collections
import contextlib
import inspect
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import rich.console
import rich.markup
import typer

from dm_env_rpc_client.cli import arguments
from dm_env_rpc_client.cli.consoles import Console, console, print_json
from dm_env_rpc_client.cli.failures import REFUSED, Terminated, UsageError
from dm_env_rpc_client.cli.group import examples
from dm_env_rpc_client.compliance.options import FLAGS, Flag, Kind, Options

if TYPE_CHECKING:
    from dm_env_rpc_client.compliance import Outcome, Result

__all__ = ["EXAMPLES", "check"]

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

# The type of a parameter, and what its flag takes beside its name and help text.
_BY_KIND: dict[Kind, tuple[Any, dict[str, Any]]] = {
    Kind.SETTINGS: (list[str] | None, {"metavar": "NAME=VALUE"}),
    Kind.NAMES: (list[str] | None, {"metavar": "NAME"}),
    Kind.TEXT: (str | None, {"metavar": "NAME"}),
    Kind.POLICY: (str, {"metavar": "POLICY", "autocompletion": arguments.complete_policy}),
    Kind.COUNT: (int, {"metavar": "N"}),
    Kind.SECONDS: (float, {"metavar": "SECONDS", "callback": arguments.check_seconds}),
    Kind.YES_OR_NO: (bool | None, {}),
    Kind.SWITCH: (bool, {}),
    Kind.FILE: (str | None, {}),
}


def _parameter(field: str, flag: Flag) -> inspect.Parameter:
    """Returns the parameter that gives the command a flag."""
    annotation, details = _BY_KIND[flag.kind]
    names = [f"--{flag.name}" + (f"/--{flag.opposite}" if flag.opposite else "")]
    if flag.kind is Kind.POLICY:
        names.append("-p")
    elif flag.kind is Kind.COUNT:
        details = {**details, "min": flag.minimum}
    option = typer.Option(*names, help=flag.usage(), **details)
    if flag.kind is Kind.FILE:
        option = arguments.file_option(flag)
    return inspect.Parameter(
        field,
        inspect.Parameter.KEYWORD_ONLY,
        default=getattr(Options, field, None),
        annotation=Annotated[annotation, option],
    )


def _with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command a flag for each option of the suite, in place of its `**given`."""
    own = inspect.signature(command, eval_str=True).parameters
    address, *rest = (each for each in own.values() if each.kind is not each.VAR_KEYWORD)
    parameters = [address, *(_parameter(*row) for row in FLAGS.items()), *rest]
    arguments.replace_parameters(command, parameters)
    return command


@_with_flags
def check(
    address: arguments.Address,
    *,
    only: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Run only checks with TEXT in their name.")
    ] = None,
    as_json: arguments.Json = False,
    **given: Any,
) -> None:
    """Checks a server against the protocol; exits with code 1 if a check fails.

    A failure breaks clients that follow the protocol; a warning does not.
    Warnings leave the exit code at 0, unless --strict makes them failures.
    """
    from dm_env_rpc_client.compliance import Outcome

    options = Options.from_flags(given)
    with arguments.reached(address, _access(options)) as found:
        results = _run(found, options, only or "", as_json)
    counts = collections.Counter(dict.fromkeys(Outcome, 0))
    counts.update(result.outcome for result in results)
    if as_json:
        print_json(_summary(address, results, counts))
    else:
        Console().print(", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome))
    if counts[Outcome.FAILED]:
        raise typer.Exit(REFUSED)


def _access(options: Options) -> arguments.Access:
    security = options.security()
    return arguments.Access(security["insecure"], security["credentials"], security["token"])


def _run(address: str, options: Options, only: str, as_json: bool) -> list[Result]:
    import rich.progress

    from dm_env_rpc_client.compliance import CHECKS, run

    checks = [check for check in CHECKS if only in check.name]
    if not checks:
        raise UsageError(f"no check has {only!r} in its name")
    # One error with its own exit code, instead of a failure of every check.
    with arguments.open_connection(address, options.timeout, _access(options)):
        pass
    names = {check.name for check in checks}
    results: list[Result] = []
    out = Console(soft_wrap=True, highlight=False)
    # Only one console knows where the bar is: if both are terminals, they are the same one.
    with_bar = out if out.is_terminal else console
    lines = _Lines(out)
    with rich.progress.Progress(
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        console=with_bar,
        transient=True,
        disable=as_json or not with_bar.is_terminal,
    ) as progress:
        task = progress.add_task(f"checking {address}", total=len(checks))
        with _ending_between_checks(with_bar) as raise_if_told:
            for result in run(address, options, checks):
                results.append(result)
                progress.update(task, completed=sum(each.name in names for each in results))
                if not as_json:
                    lines.add(result)
                raise_if_told()
        lines.end()
    return results


@contextlib.contextmanager
def _ending_between_checks(screen: rich.console.Console) -> Iterator[Callable[[], None]]:
    """Delays the first SIGINT or SIGTERM until the running check has cleaned up at the server.

    Args:
      screen: the console that shows the progress.

    Yields:
      A function that raises what the signal stands for, if one has come. A second signal ends
      the command at once.
    """
    came: list[int] = []

    def record(number: int, frame: FrameType | None) -> None:
        came.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)
        if screen.is_terminal:
            screen.print("stopping when the running check has ended; once more stops at once")

    def raise_if_told() -> None:
        if came:
            raise KeyboardInterrupt if came[0] == signal.SIGINT else Terminated

    before = {each: signal.signal(each, record) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield raise_if_told
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class _Lines:
    """Prints results; several in a row that were skipped for one reason are shortened.

    Args:
      out: where to.
    """

    def __init__(self, out: rich.console.Console):
        self._out = out
        self._reason = ""
        self._more = 0

    def add(self, result: Result) -> None:
        """Prints a result, or counts it."""
        is_skipped = result.outcome.value == "skipped"
        if is_skipped and result.reason == self._reason:
            self._more += 1
            return
        self.end()
        self._reason = result.reason if is_skipped else ""
        head, *rest = str(result).split("\n")
        detail = head.partition(": ")[2].removeprefix(result.outcome.value)
        style = _STYLES[result.outcome.value]
        text = rich.markup.escape("\n".join([f"{result.name}{detail}", *rest]))
        # At once: a progress bar is drawn again after each print.
        self._out.print(f"[{style}]{result.outcome.value:7}[/] {text}")

    def end(self) -> None:
        """Prints what was counted."""
        if self._more:
            style = _STYLES["skipped"]
            self._out.print(f"[{style}]skipped[/] {self._more} more, for the same reason")
        self._reason, self._more = "", 0


def _summary(
    address: str, results: list[Result], counts: collections.Counter[Outcome]
) -> dict[str, Any]:
    return {
        "address": address,
        **{outcome.value: count for outcome, count in counts.items()},
        "checks": [result.as_json() for result in results],
    }
