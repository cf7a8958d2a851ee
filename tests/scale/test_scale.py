"""The calculation against reality, the fake servers, and what the command writes.

The bounds are wide, for these tests run beside others; the full run is `python -m tests.scale`.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from dm_env_rpc_client import BatchedEnvironment, EnvironmentsFailedError
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.server import serve
from tests.benchmarks.cheap import PAYLOADS, Cheap
from tests.scale import costs, plot, report, simulation
from tests.scale.__main__ import main
from tests.scale.fakes import fake
from tests.scale.model import Costs
from tests.scale.processes import MAX_CONNECTIONS, on_one_core, served
from tests.scale.report import Run
from tests.scale.simulation import ANY, COUNTS, LATENCIES, WAITS_FOR_ALL, Outcome

SCALAR, *_ = PAYLOADS


@pytest.mark.slow
def test_measured_and_calculated_are_of_one_size_with_64_environments() -> None:
    with costs.gauge(SCALAR) as gauge:
        found = costs.measure(SCALAR, 5, gauge, lambda _: None)
        outcomes = list(simulation.simulate(SCALAR, found, gauge, 0.0, lambda _: None, [64]))
    assert found.request_bytes < 200
    assert found.answer_bytes < 200
    assert [(o.seconds, o.mode) for o in outcomes] == [
        (latency, mode) for latency in LATENCIES for mode in (WAITS_FOR_ALL, ANY)
    ]
    for outcome in outcomes:
        # Others have the processors, too: what is measured is less then.
        assert 0.1 < outcome.measured / outcome.calculated < 2, outcome


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_measured_and_calculated_are_close_with_1000_environments() -> None:
    with on_one_core(), costs.gauge(SCALAR) as gauge:
        found = costs.measure(SCALAR, 200, gauge, lambda _: None)
        for outcome in simulation.simulate(SCALAR, found, gauge, 20.0, lambda _: None, [1000]):
            assert abs(outcome.error) < 0.15, outcome


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_fake_answers_as_the_server_did(payload: str) -> None:
    shape, dtype = PAYLOADS[payload]
    with fake(payload) as server:
        server.answer_after(0.001)
        with BatchedEnvironment(server.address, 5, {"payload": payload}) as envs:
            assert envs.reset().first().all()
            before = server.traffic()
            for _ in range(3):
                timestep = envs.step({"action": np.ones(5, np.int32)})
            after = server.traffic()
            assert timestep.mid().all()
            assert timestep.reward.tolist() == [1.0] * 5
            observation = timestep.observation["observation"]
            assert (observation.shape, observation.dtype) == ((5, *shape), dtype)
            assert after.steps - before.steps == 15
            assert (after.sent - before.sent) / 15 > observation[0].nbytes
        with RemoteVectorEnv(server.address, 3) as vector:
            vector.reset()
            assert vector.step(np.ones(3, np.int32))[1].tolist() == [1.0] * 3


def test_a_fake_waits_before_it_answers() -> None:
    with fake(SCALAR) as server, BatchedEnvironment(server.address, 2) as envs:
        envs.reset()
        server.answer_after(0.2)
        begin = time.monotonic()
        assert envs.step(costs.actions(2)).mid().all()
        assert time.monotonic() - begin >= 0.2


def test_the_default_of_max_connections_refuses_the_257th_environment() -> None:
    with serve(Cheap) as server, pytest.raises(EnvironmentsFailedError, match="limit of 256"):
        BatchedEnvironment(server.address, 257, {"payload": SCALAR}, num_batches=0)


@pytest.mark.parametrize("count", [300, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_server_serves_a_thousand_environments_on_one_socket(count: int) -> None:
    assert count < MAX_CONNECTIONS
    with served() as server, costs.opened(server.address, count, SCALAR) as envs:
        connections = {
            environment.connection.fileno() for environment in envs._worlds.pool.environments
        }
        assert len(connections) == 1
        for _ in range(3):
            assert envs.step(costs.actions(count)).mid().all()
        envs.send(costs.actions(count))
        received: list[int] = []
        while len(received) < count:
            received += envs.recv()[1].tolist()
        assert sorted(received) == list(range(count))


# What the command writes.

COSTS = Costs(
    11e-6, 4e-6, 6e-6, 12e-6, 20e-6, 25e-6, 1e-9, 2e-9, 30e-6, 3e-6, 50, 70, 40_000, 20_000
)


def run_of(payloads: list[str]) -> Run:
    outcomes = [
        Outcome(payload, mode, count, latency, 20_000.0, 21_000.0, 0.001)
        for payload in payloads
        for latency in LATENCIES
        for mode in (WAITS_FOR_ALL, ANY)
        for count in COUNTS
    ]
    computing = [
        Outcome(payload, does, count, seconds, 900.0, 891.0, 0.0)
        for payload in payloads
        for does, count, seconds in simulation.SERVED
    ]
    return Run({"date": "2030-01-01"}, dict.fromkeys(payloads, COSTS), outcomes, computing)


def test_what_was_found_is_read_again(tmp_path: Path) -> None:
    run = run_of(list(PAYLOADS))
    path = tmp_path / "run.json"
    path.write_text(report.as_json(run))
    assert report.read(path) == run


def test_the_tables_have_what_was_measured_and_what_follows() -> None:
    text = report.markdown(run_of([SCALAR]))
    assert (
        "| float32 [1] | 11 | 4 | 6 | 12 | 20 | 25 | 0.07 | 0.14 | 30 | 3 | 50 | 70 | 39 | 20 |"
        in text
    )
    cells = " | ".join(["21 / 20 (+5%)"] * 4)
    assert f"| float32 [1] | 1 ms | `step` | {cells} |" in text
    assert "others took 0% of the time or of the speed (median)." in text
    assert "| observation | 16, each computes for 0 ms |" in text
    assert f"| float32 [1] | {' | '.join(['891 / 900 (-1%)'] * len(simulation.SERVED))} |" in text
    # 1 / (4 + 6 + 12 us), and 1 / (30 us + 20 ms).
    assert "| float32 [1] | cheap | 45,500 (" in text
    assert " | 49.9 (" in text
    # Two cores share 52 us; one client process of a larger machine is busy with 22.
    assert "| float32 [1] | cheap | 38,500 (4), cores | 45,500 (5), client process | 45,5" in text
    assert "| float32 [1] | cheap | 38,500 (4), 1 + 1 | 308,000 (32), 7 + 9 | 1,230,000 (" in text
    assert "| 45,500 (5), client process | 682,000 (75), client process | 2,460,000 (" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.count("|") > 3 for line in lines)


def test_the_summary_says_how_far_the_two_are_apart() -> None:
    assert report.summary(run_of([SCALAR])) == (
        "24 simulations: measured and calculated are at most 5% apart, and 5% with 1,000 "
        "environments"
    )
    assert report.summary(Run({})) == "nothing was simulated"


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_plot_is_drawn(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"plot.{suffix}"
    plot.draw(run_of(list(PAYLOADS)), path)
    assert 5_000 < path.stat().st_size < plot.MAX_BYTES
    with pytest.raises(ValueError, match="nothing to draw"):
        plot.draw(Run({}), path)


def test_the_command_writes_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    assert main(["--quick", "--only", SCALAR, "--json", str(path)]) == 0
    printed = capsys.readouterr()
    assert "6 simulations: " in printed.out
    assert "float32 [1]: 64 environments, 20 ms, send and recv" in printed.err
    assert len(json.loads(path.read_text())["served"]) == len(simulation.SERVED)
    tables, drawn = tmp_path / "run.md", tmp_path / "run.svg"
    assert main(["--from", str(path), "--markdown", str(tables), "--plot", str(drawn)]) == 0
    assert "## Calculated: a cluster" in tables.read_text()
    assert drawn.read_text().lstrip().startswith("<?xml")


def test_the_command_fails_if_a_thousand_are_not_as_calculated(tmp_path: Path) -> None:
    run = run_of([SCALAR])
    path = tmp_path / "run.json"
    path.write_text(report.as_json(run))
    assert main(["--from", str(path)]) == 0
    run.simulated[-1] = Outcome(SCALAR, ANY, 1000, 0.02, 20_000.0, 16_000.0, 0.0)
    path.write_text(report.as_json(run))
    assert main(["--from", str(path)]) == 1


def test_the_guide_has_the_tables_of_the_last_run() -> None:
    folder = Path(__file__).resolve().parents[2] / "docs" / "explanations"
    text = (folder / "scale-figures.md").read_text()
    for payload in PAYLOADS:
        assert f"| {payload} | 20 ms | `{WAITS_FOR_ALL}` |" in text
    guide = (folder / "scale.md").read_text()
    assert "(scale-figures.md)" in guide
    assert "(scale.svg)" in guide
    assert (folder / "scale.svg").stat().st_size < plot.MAX_BYTES
