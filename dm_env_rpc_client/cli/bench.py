"""`dm-env-rpc bench`."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import rich.box
import rich.console
import rich.progress
import rich.table
import typer

from dm_env_rpc_client.cli import arguments
from dm_env_rpc_client.cli.consoles import Console, cell, console, print_json
from dm_env_rpc_client.cli.failures import UsageError
from dm_env_rpc_client.cli.group import examples

if TYPE_CHECKING:
    from dm_env_rpc_client.cli.stopwatch import Moments, Stopwatch
    from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor

__all__ = ["EXAMPLES", "bench"]

EXAMPLES = examples(
    "dm-env-rpc bench localhost:50051",
    "dm-env-rpc bench localhost:50051 --seconds 30 --transport grpc --create rows=20",
    "dm-env-rpc bench localhost:50051 --json",
)

_ACTIONS = 256
"""Actions that are sampled before the measurement and then taken in turn."""

_PERCENTILES = (50, 90, 99, 99.9)
_PHASES = ("encode", "send", "wait", "decode")
_DEPTHS = (1, 2, 4, 8, 16, 32, 64)
_ROUNDS = 3
"""How often each depth is measured; the median is reported."""

_WAITING_PART = 0.4
_PIPELINE_PART = 0.4
_SERVER_PART = 0.2
_WARM_UP = 3
_SHOW_SECONDS = 0.1

Tell = Callable[[float], None]
"""Takes the number of seconds of the measurement that have passed."""


@arguments.with_access
def bench(
    address: arguments.Address,
    seconds: Annotated[
        float,
        typer.Option(
            min=0.1,
            metavar="SECONDS",
            help="Duration of the whole measurement. Slow steps can make it longer.",
        ),
    ] = 5.0,
    transport: Annotated[
        str, typer.Option(metavar="NAME", help="Transport of the stream: auto, http2 or grpc.")
    ] = "auto",
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            "-p",
            autocompletion=arguments.complete_policy,
            metavar="POLICY",
            help="Source of actions: random or constant. No other policy is possible, because "
            "steps are sent before the answers to earlier ones arrive.",
        ),
    ] = "random",
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the random policy.")] = 0,
    create: arguments.CreateSettings = None,
    join: arguments.JoinSettings = None,
    world: arguments.World = None,
    timeout: arguments.Timeout = 10.0,
    *,
    access: arguments.Access,
    as_json: arguments.Json = False,
) -> None:
    """Measures how fast an environment steps, and how the time of a step is spent.

    Latency is the time of one step when nothing else is pending. Its phase `wait` contains the
    network in both directions and the work of the server. The share of the server is estimated
    by comparison with requests that the server only answers. The last table shows the throughput
    if several steps are pending at once, as `rollout` sends them.
    """
    from dm_env_rpc_client.cli.policies import make_policy
    from dm_env_rpc_client.cli.stopwatch import Stopwatch

    if policy not in ("random", "constant"):
        raise UsageError(
            f"bench cannot use the policy {policy!r}; choose random or constant, which do not "
            "depend on the answer to the previous step"
        )
    create_settings = arguments.parse_settings(create)
    join_settings = arguments.parse_settings(join)
    with _environment(
        address, create_settings, join_settings, world, timeout, access, transport
    ) as env:
        act = make_policy(policy, env.action_spec(), seed)
        first = env.reset()
        stopwatch = Stopwatch(env, [act(first) for _ in range(_ACTIONS)])
        with _progress(address, seconds, as_json) as tell:
            measured = _measure(stopwatch, seconds, tell)
    result = {"address": address, "transport": transport, "policy": policy, **measured}
    if as_json:
        print_json(result)
    else:
        _print(result)


@contextlib.contextmanager
def _environment(
    address: str,
    create: dict[str, Any],
    join: dict[str, Any],
    world: str | None,
    timeout: float,
    access: arguments.Access,
    transport: str,
) -> Iterator[DmEnvAdaptor]:
    from dm_env_rpc_client.client.connection import connect
    from dm_env_rpc_client.environment.worlds import join_world, make

    if world is not None and create:
        raise UsageError("--create is for a new world, --world joins an existing one")
    arguments.check_address(address, access)
    how: Any = {
        "timeout": timeout,
        "request_timeout": timeout,
        "transport": transport,
        **access.options(),
    }
    with contextlib.ExitStack() as stack:
        with arguments.waiting(f"connecting to {address}"):
            if world is None:
                env = make(address, create, join, **how)
            else:
                env = join_world(stack.enter_context(connect(address, **how)), world, join)
        yield stack.enter_context(env)


@contextlib.contextmanager
def _progress(address: str, seconds: float, as_json: bool) -> Iterator[Tell]:
    with rich.progress.Progress(
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=as_json or not console.is_terminal,
    ) as progress:
        task = progress.add_task(f"measuring {address}", total=seconds)
        shown = 0.0

        def tell(passed: float) -> None:
            nonlocal shown
            if passed - shown >= _SHOW_SECONDS:
                shown = passed
                progress.update(task, completed=min(passed, seconds))

        yield tell


def _measure(stopwatch: Stopwatch, seconds: float, tell: Tell) -> dict[str, Any]:
    begin = time.perf_counter()

    def passed() -> float:
        now = time.perf_counter() - begin
        tell(now)
        return now

    for _ in range(_WARM_UP):
        stopwatch.step()
    steps = [stopwatch.step()]
    while passed() < seconds * _WAITING_PART:
        steps.append(stopwatch.step())
    pipeline = _pipeline(stopwatch, seconds * _PIPELINE_PART, passed)
    # Last, because some servers end the stream at an unknown request.
    server = _server(stopwatch, passed() + seconds * _SERVER_PART, passed)
    request_bytes = sum(step.request_bytes for step in steps) / len(steps)
    answer_bytes = sum(step.answer_bytes for step in steps) / len(steps)
    return {
        "steps": len(steps),
        "latency_us": _latency(steps),
        "phases_us": {
            phase: _percentiles([getattr(step, phase) for step in steps]) for phase in _PHASES
        },
        "server": server,
        "request_bytes": request_bytes,
        "answer_bytes": answer_bytes,
        "pipeline": [
            {
                "depth": depth,
                "steps_per_second": rate,
                "megabytes_per_second": rate * (request_bytes + answer_bytes) / 1e6,
            }
            for depth, rate in pipeline.items()
        ],
    }


def _percentiles(seconds: list[float]) -> dict[str, float]:
    import numpy as np

    found = np.percentile(seconds, _PERCENTILES) * 1e6
    return {f"p{percent:g}": float(us) for percent, us in zip(_PERCENTILES, found, strict=True)}


def _latency(steps: list[Moments]) -> dict[str, float]:
    totals = [step.total for step in steps]
    return {
        "mean": sum(totals) / len(totals) * 1e6,
        **_percentiles(totals),
        "max": max(totals) * 1e6,
    }


def _pipeline(
    stopwatch: Stopwatch, seconds: float, passed: Callable[[], float]
) -> dict[int, float]:
    import numpy as np

    rates: dict[int, list[float]] = {depth: [] for depth in _DEPTHS}
    for _ in range(_ROUNDS):
        for depth, of_one in rates.items():
            of_one.append(stopwatch.ahead(depth, seconds / (_ROUNDS * len(_DEPTHS))))
            passed()
    return {depth: float(np.median(of_one)) for depth, of_one in rates.items()}


def _server(stopwatch: Stopwatch, end: float, passed: Callable[[], float]) -> dict[str, Any]:
    """Estimates the server's share of the wait; steps and unknown requests alternate."""
    import numpy as np

    from dm_env_rpc_client.errors import DmEnvRpcClientError

    waits, round_trips = [], []
    try:
        while True:
            round_trips.append(stopwatch.round_trip())
            waits.append(stopwatch.step().wait)
            if passed() >= end:
                break
    except DmEnvRpcClientError as error:
        return {"estimate_us": None, "reason": str(error)}
    wait, round_trip = (float(np.median(of_one)) * 1e6 for of_one in (waits, round_trips))
    measured = {"wait_us": wait, "round_trip_us": round_trip}
    if round_trip >= wait:
        reason = (
            f"a request that the server only answers waits longer ({_us(round_trip)} us) than a "
            f"step ({_us(wait)} us)"
        )
        return {"estimate_us": None, "reason": reason, **measured}
    return {"estimate_us": wait - round_trip, **measured}


def _print(result: dict[str, Any]) -> None:
    out = Console(highlight=False)
    # On a terminal, lines end between words; in a file, they are whole.
    say = functools.partial(out.print, soft_wrap=not out.is_terminal)
    latency = result["latency_us"]
    say(
        f"{result['steps']} steps; a request has {result['request_bytes']:.0f} bytes, an answer "
        f"{result['answer_bytes']:.0f}; times in us"
    )
    times = rich.table.Table(box=rich.box.SIMPLE)
    times.add_column("")
    names = list(result["phases_us"]["wait"])
    for name in names:
        times.add_column(name, justify="right")
    times.add_row("step", *(_us(latency[name]) for name in names), style="bold")
    for phase, found in result["phases_us"].items():
        times.add_row(f"  {phase}", *(_us(found[name]) for name in names))
    out.print(times, soft_wrap=True)
    say(f"mean {_us(latency['mean'])}, max {_us(latency['max'])}")
    server = result["server"]
    if server["estimate_us"] is None:
        reason = cell(server["reason"])
        say(f"the server's share of the wait is unknown: {reason}")
    else:
        say(
            f"the server's share of the wait is about {_us(server['estimate_us'])}, including the "
            f"transfer of a larger answer: measured alternately, a step waits "
            f"{_us(server['wait_us'])} and a request that the server only answers "
            f"{_us(server['round_trip_us'])}"
        )
    pipeline = rich.table.Table(box=rich.box.SIMPLE)
    for name in ("pending", "steps/s", "MB/s"):
        pipeline.add_column(name, justify="right")
    for row in result["pipeline"]:
        pipeline.add_row(
            str(row["depth"]),
            f"{row['steps_per_second']:.0f}",
            f"{row['megabytes_per_second']:.1f}",
        )
    out.print(pipeline, soft_wrap=True)


def _us(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"
