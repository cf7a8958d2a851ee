"""What a run found, as JSON and as the tables of the guide."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tests.scale import model
from tests.scale.model import Costs, Machine, Reach
from tests.scale.simulation import ANY, WAITS_FOR_ALL, Outcome

__all__ = ["BANDWIDTH", "Run", "as_json", "facts", "markdown", "read", "summary"]

BANDWIDTH = 10e9 / 8
"""Bytes per second of a network card."""

WORK = {"cheap": 0.0, "1 ms": 0.001, "20 ms": 0.020}
"""Seconds for which an environment computes in a step, by its name in the tables."""

MACHINES = (2, 16, 64)
CLUSTER = 8
CLUSTER_CORES = 16
_TRAINER_CLIENTS = 15
_QUIET = 0.05
_GIB = 1 << 30
_KIB = 1 << 10

_UNITS = "Times are microseconds of a processor; `fresh` and `piled` are those of an answer."

_SIMULATED = f"""\
Environments of fake servers, in thousands of steps per second: measured / calculated.
`{WAITS_FOR_ALL}` waits for all environments, `{ANY}` for any."""

_SERVED = """\
Environments of a real server, in one process, that compute or wait, in steps per second: measured /
calculated."""

_PROCESSES = """\
Steps per second at most, and in brackets the number of environments that reach 90 % of it. The
environments of the client process have a core each, those of the server process share one."""

_ALONE = """\
Clients and servers on the same machine. With one client process: steps per second, the number of
environments that it takes, and what saturates first."""

_FULL = """\
With as many client processes as it takes to keep all cores busy: steps per second, the number of
environments, and client processes + server processes."""

_CLUSTERS = f"""\
{CLUSTER} machines of {CLUSTER_CORES} cores with environments, and a trainer on a machine of its own
with a card of 10 Gbit/s: steps per second, the number of environments that it takes, and what
saturates first. Clients beside the trainer step over the network; those beside the environments,
such as actors of Ray, send the trainer what they observed."""


@dataclasses.dataclass
class Run:
    """What a run found.

    Attributes:
      about: the circumstances, by name.
      costs: of a step, by what is observed.
      simulated: on fake servers.
      served: on real ones.
    """

    about: dict[str, str]
    costs: dict[str, Costs] = dataclasses.field(default_factory=dict)
    simulated: list[Outcome] = dataclasses.field(default_factory=list)
    served: list[Outcome] = dataclasses.field(default_factory=list)


def facts() -> dict[str, str]:
    """Returns where and when this runs."""
    return {
        "date": datetime.date.today().isoformat(),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(len(os.sched_getaffinity(0))),
    }


def as_json(run: Run) -> str:
    """Returns all that was measured; `read` takes it back."""
    return json.dumps(dataclasses.asdict(run), indent=1) + "\n"


def read(path: Path) -> Run:
    """Returns the run that `as_json` wrote to a file."""
    found = json.loads(path.read_text())
    return Run(
        found["about"],
        {payload: Costs(**costs) for payload, costs in found["costs"].items()},
        [Outcome(**outcome) for outcome in found["simulated"]],
        [Outcome(**outcome) for outcome in found["served"]],
    )


def summary(run: Run) -> str:
    """Returns a line: how far measurements and calculations are apart."""
    errors = [abs(outcome.error) for outcome in run.simulated]
    if not errors:
        return "nothing was simulated"
    most = max(outcome.environments for outcome in run.simulated)
    largest = max(abs(o.error) for o in run.simulated if o.environments == most)
    return (
        f"{len(errors)} simulations: measured and calculated are at most {max(errors):.0%} apart, "
        f"and {largest:.0%} with {most:,} environments"
    )


def markdown(run: Run) -> str:
    """Returns the tables of the guide."""
    about = "; ".join(f"{name}: {value}" for name, value in run.about.items())
    parts = [
        "<!-- Written by `python -m tests.scale --markdown`; do not edit. -->",
        "",
        "# Figures of scale",
        "## Measured: what a step costs",
        f"{about}. {_UNITS}",
        _costs(run),
        "## Measured, against the calculation",
        _SIMULATED,
        _disturbed(run),
        _simulated(run),
        _SERVED,
        _served(run),
        "## Calculated: a process",
        _PROCESSES,
        _processes(run),
        "Memory, in environments for each GiB:",
        _memory(run),
        "## Calculated: a machine",
        _ALONE,
        _machines(run, _alone),
        _FULL,
        _machines(run, _full),
        "## Calculated: a cluster",
        _CLUSTERS,
        _clusters(run),
    ]
    return "\n\n".join(parts) + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _costs(run: Run) -> str:
    rows = []
    for payload, costs in run.costs.items():
        micro = (costs.call, costs.check, costs.send, costs.read, costs.turn, costs.swap)
        new = (costs.fresh * costs.answer_bytes, costs.piled * costs.answer_bytes)
        rows.append(
            [
                payload,
                *(_number(seconds * 1e6) for seconds in (*micro, *new, costs.serve, costs.fake)),
                f"{costs.request_bytes:,.0f}",
                f"{costs.answer_bytes:,.0f}",
                f"{costs.client_bytes / _KIB:,.0f}",
                f"{costs.server_bytes / _KIB:,.0f}",
            ]
        )
    names = ("call", "check", "send", "read", "turn", "swap", "fresh", "piled", "serve", "fake")
    header = ["observation", *(f"`{name}`" for name in names)]
    header += ["request, bytes", "answer, bytes", "client, KiB", "server, KiB"]
    return _table(header, rows)


def _disturbed(run: Run) -> str:
    """Says how quiet the machine was."""
    shares = [outcome.disturbance for outcome in (*run.simulated, *run.served)]
    share = statistics.median(shares) if shares else 0.0
    text = f"In the turns that count, others took {share:.0%} of the time or of the speed"
    if share <= _QUIET:
        return f"{text} (median)."
    return f"{text} (median): the machine was busy."


def _simulated(run: Run) -> str:
    counts = sorted({outcome.environments for outcome in run.simulated})
    cells: dict[tuple[str, float, str], dict[int, Outcome]] = {}
    for outcome in run.simulated:
        key = outcome.payload, outcome.seconds, outcome.mode
        cells.setdefault(key, {})[outcome.environments] = outcome
    rows = [
        [
            payload,
            f"{seconds * 1000:g} ms",
            f"`{mode}`",
            *(_compared(found.get(count), 1e-3) for count in counts),
        ]
        for (payload, seconds, mode), found in cells.items()
    ]
    return _table(["observation", "latency", "", *(f"{count:,}" for count in counts)], rows)


def _served(run: Run) -> str:
    rows: dict[str, list[str]] = {}
    header = ["observation"]
    for outcome in run.served:
        name = f"{outcome.environments}, each {outcome.mode} for {outcome.seconds * 1000:g} ms"
        if name not in header:
            header.append(name)
        rows.setdefault(outcome.payload, [outcome.payload]).append(_compared(outcome, 1.0))
    return _table(header, rows.values())


def _compared(outcome: Outcome | None, scale: float) -> str:
    if outcome is None:
        return ""
    measured, calculated = (
        _number(rate * scale) for rate in (outcome.measured, outcome.calculated)
    )
    return f"{measured} / {calculated} ({outcome.error:+.0%})"


def _processes(run: Run) -> str:
    rows = []
    for payload, costs in run.costs.items():
        for name, work in WORK.items():
            client, server = 1 / costs.client, 1 / (costs.serve + work)
            served = costs.serve + work
            apart = functools.partial(model.stepped, costs, latency=served)
            together = functools.partial(model.stepped, costs, latency=0.0, serve=served)
            busy = model.busy_from(apart, client)
            shared = model.busy_from(together, min(client, server))
            rows.append(
                [payload, name, f"{_number(client)} ({busy:,})", f"{_number(server)} ({shared:,})"]
            )
    return _table(["observation", "environment", "client process", "server process"], rows)


def _memory(run: Run) -> str:
    rows = [
        [payload, _number(_GIB / costs.client_bytes), _number(_GIB / costs.server_bytes)]
        for payload, costs in run.costs.items()
        if costs.client_bytes and costs.server_bytes
    ]
    return _table(["observation", "client process", "server process"], rows)


def _machines(run: Run, show: Callable[[Machine], str]) -> str:
    rows = [
        [payload, name, *(show(model.machine(costs, work, cores)) for cores in MACHINES)]
        for payload, costs in run.costs.items()
        for name, work in WORK.items()
    ]
    return _table(["observation", "environment", *(f"{cores} cores" for cores in MACHINES)], rows)


def _alone(machine: Machine) -> str:
    return _reached(machine.alone)


def _full(machine: Machine) -> str:
    full = machine.full
    processes = f"{machine.clients} + {machine.servers}"
    return f"{_number(full.rate)} ({full.environments:,}), {processes}"


def _reached(reach: Reach) -> str:
    return f"{_number(reach.rate)} ({reach.environments:,}), {reach.first}"


def _clusters(run: Run) -> str:
    rows = []
    for payload, costs in run.costs.items():
        for name, work in WORK.items():
            row = [payload, name]
            for clients in (1, _TRAINER_CLIENTS, None):
                found = model.cluster(costs, work, CLUSTER, CLUSTER_CORES, BANDWIDTH, clients)
                row.append(_reached(found))
            rows.append(row)
    header = [
        "observation",
        "environment",
        "one client beside the trainer",
        f"{_TRAINER_CLIENTS} clients beside the trainer",
        "clients beside the environments",
    ]
    return _table(header, rows)


def _number(value: float) -> str:
    """Returns three digits of a number."""
    if value >= 1000:
        digits = len(str(int(value))) - 3
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}"
