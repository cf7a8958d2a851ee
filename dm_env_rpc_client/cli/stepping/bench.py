"""`dm-env-rpc bench`."""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dm_env_rpc_client.cli import options
from dm_env_rpc_client.cli.consoles import Console, cell, print_json, progress, table
from dm_env_rpc_client.cli.failures import UsageError
from dm_env_rpc_client.cli.group import examples

if TYPE_CHECKING:
    from dm_env_rpc_client.cli.stepping.episodes import Stopwatch

EXAMPLES = examples(
    "dm-env-rpc bench localhost:50051",
    "dm-env-rpc bench localhost:50051 --seconds 30 --transport grpc --create rows=20",
    "dm-env-rpc bench localhost:50051 --json",
)

_ACTIONS = 256
"""The number of actions that are sampled before the measurement and then reused in a cycle."""

_PERCENTILES = (50, 90, 99, 99.9)
_PHASES = ("encode", "send", "wait", "decode")
_DEPTHS = (1, 2, 4, 8, 16, 32, 64)
_ROUNDS = 3
"""The number of measurements for each pipeline depth; their median is reported."""

_WAITING_PART = 0.4
_PIPELINE_PART = 0.4
_SERVER_PART = 0.2
_WARM_UP = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Measurement(options.Group):
    """The options of the measurement.

    Attributes:
      seconds: Duration of the whole measurement. Slow steps can make it longer.
      transport: Transport of the stream: auto, http2 or grpc.
      policy: Source of actions: random or constant. No other policy is possible, because steps are
        sent before the answers to earlier ones arrive.
    """

    seconds: Annotated[float, typer.Option(min=0.1, metavar="SECONDS")] = 5.0
    transport: Annotated[str, typer.Option(metavar="NAME")] = "auto"
    policy: str = "random"
    seed: int = 0


@options.with_options
def bench(
    *, measurement: _Measurement, world: options.World, as_json: options.Json = False
) -> None:
    """Measure how fast an environment steps, and where the time of a step goes.

    Latency is the time of one step when nothing else is pending. The phase `wait` includes
    transmission in both directions and the work of the server. The server's share is estimated by
    comparison with requests that need no work. The last table shows the throughput with several
    pending steps, as with `rollout`.
    """
    from rich.progress import TimeRemainingColumn

    from dm_env_rpc_client.cli.stepping.episodes import Stopwatch, make_policy
    from dm_env_rpc_client.environment.many.one_row import num_envs_of

    seconds, policy = measurement.seconds, measurement.policy
    if policy not in ("random", "constant"):
        raise UsageError(
            f"bench cannot use the policy {policy!r}; choose random or constant, which do not "
            "depend on the answer to the previous step"
        )
    with (
        world.environment(transport=measurement.transport) as env,
        progress(TimeRemainingColumn(), is_shown=not as_json) as bar,
    ):
        act = make_policy(policy, env.action_spec(), measurement.seed)
        first = env.reset()
        stopwatch = Stopwatch(env, [act(first) for _ in range(_ACTIONS)])
        task = bar.add_task(f"measuring {world.address}", total=seconds)
        begin = time.perf_counter()

        def passed() -> float:
            now = time.perf_counter() - begin
            bar.update(task, completed=min(now, seconds))
            return now

        result = {
            "address": world.address,
            "transport": measurement.transport,
            "policy": policy,
            "num_envs": num_envs_of(env),
            **_measure(stopwatch, seconds, passed),
        }
    (print_json if as_json else _print)(result)


def _measure(stopwatch: Stopwatch, seconds: float, passed: Callable[[], float]) -> dict[str, Any]:
    from dm_env_rpc_client.cli.stepping.episodes import percentiles_us

    for _ in range(_WARM_UP):
        stopwatch.step()
    steps = [stopwatch.step()]
    while passed() < seconds * _WAITING_PART:
        steps.append(stopwatch.step())
    pipeline = _pipeline(stopwatch, seconds * _PIPELINE_PART, passed)
    # Last, because some servers end the stream at an unknown request.
    server = _server(stopwatch, passed() + seconds * _SERVER_PART, passed)
    totals = [step.total for step in steps]
    request_bytes = sum(step.request_bytes for step in steps) / len(steps)
    answer_bytes = sum(step.answer_bytes for step in steps) / len(steps)
    return {
        "steps": len(steps),
        "latency_us": {
            "mean": sum(totals) / len(totals) * 1e6,
            **percentiles_us(totals, _PERCENTILES),
            "max": max(totals) * 1e6,
        },
        "phases_us": {
            phase: percentiles_us([getattr(step, phase) for step in steps], _PERCENTILES)
            for phase in _PHASES
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


def _pipeline(
    stopwatch: Stopwatch, seconds: float, passed: Callable[[], float]
) -> dict[int, float]:
    rates: dict[int, list[float]] = {depth: [] for depth in _DEPTHS}
    for _ in range(_ROUNDS):
        for depth, of_one in rates.items():
            of_one.append(stopwatch.ahead(depth, seconds / (_ROUNDS * len(_DEPTHS))))
            passed()
    return {depth: statistics.median(of_one) for depth, of_one in rates.items()}


def _server(stopwatch: Stopwatch, end: float, passed: Callable[[], float]) -> dict[str, Any]:
    """Estimate the server's share of the wait by alternating steps with unknown requests."""
    from dm_env_rpc_client.errors import DmEnvRpcClientError

    waits: list[float] = []
    round_trips: list[float] = []
    try:
        while True:
            if waits and passed() >= end:
                break
            round_trips.append(stopwatch.round_trip())
            waits.append(stopwatch.step().wait)
    except DmEnvRpcClientError as error:
        return {"estimate_us": None, "reason": str(error)}
    wait, round_trip = (statistics.median(of_one) * 1e6 for of_one in (waits, round_trips))
    measured = {"wait_us": wait, "round_trip_us": round_trip}
    if round_trip >= wait:
        reason = (
            f"a request that needs no work waits longer ({_us(round_trip)} us) than a step "
            f"({_us(wait)} us)"
        )
        return {"estimate_us": None, "reason": reason, **measured}
    return {"estimate_us": wait - round_trip, **measured}


def _print(result: dict[str, Any]) -> None:
    out = Console(highlight=False)
    # On a terminal, lines are wrapped between words; in a file, they stay whole.
    say = functools.partial(out.print, soft_wrap=not out.is_terminal)
    latency = result["latency_us"]
    say(
        f"{result['steps']} steps; a request has {result['request_bytes']:.0f} bytes, an answer "
        f"{result['answer_bytes']:.0f}; times in us"
    )
    names = list(result["phases_us"]["wait"])
    times = {"step": latency, **{f"  {phase}": us for phase, us in result["phases_us"].items()}}
    rows = [(name, *(_us(found[each]) for each in names)) for name, found in times.items()]
    out.print(table(("", *names), rows, numbers=True), soft_wrap=True)
    say(f"mean {_us(latency['mean'])}, max {_us(latency['max'])}")
    server = result["server"]
    if server["estimate_us"] is None:
        reason = cell(server["reason"])
        say(f"the server's share of the wait is unknown: {reason}")
    else:
        say(
            f"the server's share of the wait is about {_us(server['estimate_us'])}, including the "
            f"transfer of a larger answer: measured alternately, a step waits "
            f"{_us(server['wait_us'])} and a request that needs no work waits "
            f"{_us(server['round_trip_us'])}"
        )
    count = result["num_envs"]
    rates = [
        (
            row["depth"],
            f"{row['steps_per_second']:.0f}",
            *(() if count is None else (f"{count * row['steps_per_second']:.0f}",)),
            f"{row['megabytes_per_second']:.1f}",
        )
        for row in result["pipeline"]
    ]
    of_rows = () if count is None else (f"steps/s of {count} environments",)
    columns = ("pending", "steps/s", *of_rows, "MB/s")
    out.print(table(columns, rates, numbers=True), soft_wrap=True)


def _us(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"
