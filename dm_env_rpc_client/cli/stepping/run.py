"""`dm-env-rpc run`."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dm_env_rpc_client.cli import options
from dm_env_rpc_client.cli.consoles import Console, print_json, progress, table
from dm_env_rpc_client.cli.group import examples
from dm_env_rpc_client.cli.stepping.watch import CUT_OFF, Watch, on_stderr

if TYPE_CHECKING:
    import dm_env

EXAMPLES = examples(
    "dm-env-rpc run                           # Catch, an example game",
    "dm-env-rpc run localhost:50051 --episodes 100",
    "dm-env-rpc run localhost:50051 --create rows=6 --policy my_agent:act --json",
    "dm-env-rpc run localhost:50051 --create num_envs=64   # in a batch of 64 environments",
)

_MAX_ROWS = 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Run(options.Group):
    """The episodes to run.

    Attributes:
      episodes: Number of episodes.
      max_steps: Number of steps after which an episode is cut off.
      seed: Seed of the random policy. If not given, every run differs.
    """

    episodes: Annotated[int, typer.Option("--episodes", "-n", min=1, metavar="N")] = 20
    max_steps: int = 10_000
    policy: str = "random"
    seed: int | None = None


@options.with_options
def run(*, wanted: _Run, world: options.WorldOrCatch, as_json: options.Json = False) -> None:
    """Run episodes in an environment and show returns, lengths and steps per second.

    In a batched world, all rows step together, each row runs its share of the episodes, and the
    policy returns the actions of all rows.
    """
    from rich.progress import MofNCompleteColumn, TextColumn, TimeRemainingColumn

    from dm_env_rpc_client.cli.stepping.episodes import Episodes, make_policy
    from dm_env_rpc_client.environment.many.one_row import num_envs_of

    episodes, max_steps = wanted.episodes, wanted.max_steps
    latencies: list[float] = []
    done = []
    with world.environment() as env:
        act = make_policy(wanted.policy, env.action_spec(), wanted.seed)
        steps = TextColumn("episodes, {task.fields[steps]} steps")
        columns = (MofNCompleteColumn(), steps, TimeRemainingColumn())
        with progress(*columns, is_shown=not as_json) as bar, Watch(env, on_stderr) as watch:
            title = f"{wanted.policy} policy at {world.address}"
            task = bar.add_task(title, total=episodes, steps=0)

            def step(action: Any) -> dm_env.TimeStep:
                with watch.step():
                    started = time.perf_counter()
                    timestep = env.step(action)
                    latencies.append(time.perf_counter() - started)
                bar.update(task, steps=len(latencies))
                return timestep

            num_envs = num_envs_of(env)
            for episode in Episodes(env, num_envs, act, episodes, max_steps, watch, step):
                done.append(episode)
                bar.advance(task)
    summary = {
        "address": world.address,
        "policy": wanted.policy,
        "num_envs": num_envs,
        "episodes": done,
        **_summarize(done, latencies, num_envs or 1),
    }
    (print_json if as_json else _print)(summary)


def _summarize(
    episodes: list[dict[str, Any]], latencies: list[float], num_envs: int
) -> dict[str, Any]:
    import numpy as np

    from dm_env_rpc_client.cli.stepping.episodes import percentiles_us

    # An episode that was cut off has no known return or length.
    finished = [episode for episode in episodes if episode["ended"] != CUT_OFF]
    returns = [episode["return"] for episode in finished]
    lengths = [episode["length"] for episode in finished]
    return {
        "finished": len(finished),
        "mean_return": float(np.mean(returns)) if finished else None,
        "std_return": float(np.std(returns)) if finished else None,
        "mean_length": float(np.mean(lengths)) if finished else None,
        "steps": num_envs * len(latencies),
        "steps_per_second": float(num_envs * len(latencies) / np.sum(latencies)),
        "latency_us": percentiles_us(latencies, (50, 90, 99)),
    }


def _print(summary: dict[str, Any]) -> None:
    out = Console()
    episodes = summary["episodes"]
    of_row = () if summary["num_envs"] is None else ("row",)
    rows = [
        (
            number,
            *(episode[name] for name in of_row),
            f"{episode['return']:.3f}",
            episode["length"],
            episode["ended"],
        )
        for number, episode in enumerate(episodes[:_MAX_ROWS], start=1)
    ]
    out.print(table(("episode", *of_row, "return", "length", "ended"), rows, numbers=True))
    if len(episodes) > _MAX_ROWS:
        out.print(f"... and {len(episodes) - _MAX_ROWS} more episodes")
    plus_minus = "±" if out.encoding.startswith("utf") else "+-"
    finished, cut_off = summary["finished"], len(episodes) - summary["finished"]
    text = f"{finished} of {len(episodes)} episodes finished" if cut_off else f"{finished} episodes"
    text += f", {summary['steps']} steps"
    if of_row:
        text += f" of {summary['num_envs']} environments"
    if finished:
        text += (
            f": return {summary['mean_return']:.3f} {plus_minus} {summary['std_return']:.3f}, "
            f"length {summary['mean_length']:.1f}"
        )
    out.print(text)
    if cut_off:
        out.print(f"{cut_off} cut off by --max-steps, and not counted in return and length")
    step = "step of all environments" if of_row else "step"
    latency = ", ".join(f"{name} {us:.0f} us" for name, us in summary["latency_us"].items())
    out.print(f"{summary['steps_per_second']:.0f} steps/s; latency of a {step}: {latency}")
