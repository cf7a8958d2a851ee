"""`dm-env-rpc run`."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import rich.box
import rich.progress
import rich.table
import typer

from dm_env_rpc_client.cli import arguments
from dm_env_rpc_client.cli.consoles import Console, console, print_json
from dm_env_rpc_client.cli.group import examples
from dm_env_rpc_client.cli.players import Watch, on_stderr

if TYPE_CHECKING:
    import dm_env

    from dm_env_rpc_client.cli.policies import Policy

__all__ = ["EXAMPLES", "run"]

EXAMPLES = examples(
    "dm-env-rpc run                           # Catch, an example game",
    "dm-env-rpc run localhost:50051 --episodes 100",
    "dm-env-rpc run localhost:50051 --create rows=6 --policy my_agent:act --json",
)


_CUT_OFF = "cut off"


class _Episode(NamedTuple):
    episode_return: float
    length: int
    ended: str


@arguments.with_access
def run(
    address: Annotated[
        str | None,
        typer.Argument(
            metavar="ADDRESS",
            help=arguments.WHERE + " If not given, it starts Catch, an example game.",
        ),
    ] = None,
    episodes: Annotated[
        int, typer.Option("--episodes", "-n", min=1, metavar="N", help="Number of episodes.")
    ] = 20,
    max_steps: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Number of steps after which an episode is cut off."),
    ] = 10_000,
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            "-p",
            autocompletion=arguments.complete_policy,
            metavar="POLICY",
            help="Source of actions: random, constant, or MODULE:FUNCTION, a function that takes "
            "the TimeStep and the action spec and returns the action.",
        ),
    ] = "random",
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Seed of the random policy. If not given, every run differs."
        ),
    ] = None,
    create: arguments.CreateSettings = None,
    join: arguments.JoinSettings = None,
    world: arguments.World = None,
    timeout: arguments.Timeout = 10.0,
    *,
    access: arguments.Access,
    as_json: arguments.Json = False,
) -> None:
    """Runs episodes in an environment and shows returns, lengths and steps per second."""
    from dm_env_rpc_client.cli.policies import make_policy

    with contextlib.ExitStack() as stack:
        create_settings = arguments.parse_settings(create)
        join_settings = arguments.parse_settings(join)
        assert address is not None, "`with_access` gives it one"
        env = stack.enter_context(
            arguments.open_environment(
                address, create_settings, join_settings, world, timeout, access
            )
        )
        act = make_policy(policy, env.action_spec(), seed)
        latencies: list[float] = []
        done = []
        with _progress(as_json) as progress, Watch(env, on_stderr) as watch:
            task = progress.add_task(f"{policy} policy at {address}", total=episodes, steps=0)
            for _ in range(episodes):
                done.append(_run_episode(env, act, max_steps, latencies, progress, task, watch))
                progress.advance(task)
    summary = _summarize(address, policy, done, latencies)
    if as_json:
        print_json(summary)
    else:
        _print(summary)


def _run_episode(
    env: dm_env.Environment,
    act: Policy,
    max_steps: int,
    latencies: list[float],
    progress: rich.progress.Progress,
    task: rich.progress.TaskID,
    watch: Watch,
) -> _Episode:
    import numpy as np

    with watch.step():
        timestep = env.reset()
    episode_return = 0.0
    for length in range(1, max_steps + 1):
        action = act(timestep)
        with watch.step():
            started = time.perf_counter()
            timestep = env.step(action)
            latencies.append(time.perf_counter() - started)
        # A reward may be an array; the table shows its sum.
        episode_return += float(np.sum(timestep.reward)) if timestep.reward is not None else 0.0
        progress.update(task, steps=len(latencies))
        if timestep.last():
            ended = "interrupted" if np.any(timestep.discount) else "terminated"
            return _Episode(episode_return, length, ended)
    return _Episode(episode_return, max_steps, _CUT_OFF)


def _progress(as_json: bool) -> rich.progress.Progress:
    return rich.progress.Progress(
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TextColumn("episodes, {task.fields[steps]} steps"),
        rich.progress.TimeRemainingColumn(),
        console=console,
        disable=as_json or not console.is_terminal,
    )


def _summarize(
    address: str, policy: str, episodes: list[_Episode], latencies: list[float]
) -> dict[str, Any]:
    import numpy as np

    microseconds = np.asarray(latencies) * 1e6
    percentiles = np.percentile(microseconds, [50, 90, 99])
    # The return and the length of an episode that was cut off are not known.
    finished = [episode for episode in episodes if episode.ended != _CUT_OFF]
    returns = np.array([episode.episode_return for episode in finished])
    lengths = [episode.length for episode in finished]
    return {
        "address": address,
        "policy": policy,
        "episodes": [
            {"return": episode.episode_return, "length": episode.length, "ended": episode.ended}
            for episode in episodes
        ],
        "finished": len(finished),
        "mean_return": float(returns.mean()) if finished else None,
        "std_return": float(returns.std()) if finished else None,
        "mean_length": float(np.mean(lengths)) if finished else None,
        "steps": len(latencies),
        "steps_per_second": float(len(latencies) / np.sum(latencies)),
        "latency_us": dict(zip(("p50", "p90", "p99"), map(float, percentiles), strict=True)),
    }


_MAX_ROWS = 30


def _print(summary: dict[str, Any]) -> None:
    table = rich.table.Table(box=rich.box.SIMPLE)
    for column in ("episode", "return", "length"):
        table.add_column(column, justify="right")
    table.add_column("ended")
    episodes = summary["episodes"]
    for number, episode in enumerate(episodes[:_MAX_ROWS], start=1):
        row = (str(number), f"{episode['return']:.3f}", str(episode["length"]), episode["ended"])
        table.add_row(*row)
    out = Console()
    out.print(table)
    if len(episodes) > _MAX_ROWS:
        out.print(f"... and {len(episodes) - _MAX_ROWS} more episodes")
    latency = summary["latency_us"]
    plus_minus = "±" if out.encoding.startswith("utf") else "+-"
    finished, cut_off = summary["finished"], len(episodes) - summary["finished"]
    counted = f"{finished} episodes"
    if cut_off:
        counted = f"{finished} of {len(episodes)} episodes finished"
    text = f"{counted}, {summary['steps']} steps"
    if finished:
        text += (
            f": return {summary['mean_return']:.3f} {plus_minus} {summary['std_return']:.3f}, "
            f"length {summary['mean_length']:.1f}"
        )
    out.print(text)
    if cut_off:
        out.print(f"{cut_off} cut off by --max-steps, and not counted in return and length")
    out.print(
        f"{summary['steps_per_second']:.0f} steps/s; latency of a step: p50 {latency['p50']:.0f} "
        f"us, p90 {latency['p90']:.0f} us, p99 {latency['p99']:.0f} us"
    )
