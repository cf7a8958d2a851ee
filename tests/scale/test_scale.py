"""Many environments on one socket, the fake servers, and what the command prints.

No bound on rates: these tests run beside others. The full run is `python -m tests.scale`.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.benchmarks.cheap import PAYLOADS
from tests.scale.__main__ import main
from tests.scale.measuring import MAX_CONNECTIONS, actions, opened, served

SCALAR, *_ = PAYLOADS
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "explanations" / "scale.md"


@pytest.mark.parametrize("count", [300, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_server_serves_a_thousand_environments_on_one_socket(count: int) -> None:
    assert count < MAX_CONNECTIONS
    with served() as server, opened(server.address, count, SCALAR) as envs:
        connections = {
            environment.connection.fileno() for environment in envs._worlds.pool.environments
        }
        assert len(connections) == 1
        for _ in range(3):
            assert envs.step(actions(count)).mid().all()
        envs.send(actions(count))
        received: list[int] = []
        while len(received) < count:
            received += envs.recv()[1].tolist()
        assert sorted(received) == list(range(count))


def headers(text: str) -> list[str]:
    """The first lines of tables."""
    lines = text.splitlines()
    return [above for above, line in itertools.pairwise(lines) if set(line) == set("| -")]


def test_the_command_prints_the_tables_of_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--only", SCALAR]) == 0
    printed = capsys.readouterr().out
    costs, simulated, real = headers(printed)
    assert [costs, simulated.replace("64", "16 | 64 | 256 | 1,000"), real] == headers(
        GUIDE.read_text()
    )
    rows = [line.strip("| ").split(" | ") for line in printed.splitlines() if SCALAR in line]
    assert [row[0] for row in rows] == [SCALAR] * 8
    costs_row, *simulated_rows, real_row = rows
    assert all(float(cost.replace(",", "")) > 0 for cost in costs_row[1:3])
    assert [tuple(row[1:3]) for row in simulated_rows] == [
        (latency, mode)
        for latency in ("1 ms", "5 ms", "20 ms")
        for mode in ("`step`", "`send and recv`")
    ]
    rates = [*(row[3] for row in simulated_rows), *real_row[1:]]
    assert all(float(rate.replace(",", "")) > 0 for rate in rates)
