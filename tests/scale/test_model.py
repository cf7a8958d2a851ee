"""The calculation: what follows from costs that are given."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dm_env_rpc_client.transports.http2.client import connection as client_connection
from tests.scale import model
from tests.scale.model import CLIENT, CORES, NETWORK, SERVERS, Costs

COSTS = Costs(
    call=10e-6,
    check=4e-6,
    send=6e-6,
    read=10e-6,
    turn=20e-6,
    swap=25e-6,
    fresh=1e-12,
    piled=2e-12,
    serve=30e-6,
    fake=3e-6,
    request_bytes=50,
    answer_bytes=144.8,
    client_bytes=1 << 20,
    server_bytes=1 << 19,
)


def reach(rate: float, first: str, environments: int) -> Any:
    approximate: Any = pytest.approx(rate)
    return model.Reach(approximate, first, environments)


def test_the_batches_are_those_of_a_connection() -> None:
    assert client_connection._FIRST_HELD_BACK == model.FIRST_BATCH
    assert list(model.batches(1000)) == [2, 8, 32, 128, 512, 318]


def test_a_step_waits_for_the_last_answer_and_hides_what_it_can() -> None:
    one = COSTS.call + COSTS.client
    assert model.round_seconds(COSTS, 1, 0.005, serve=0.001) == pytest.approx(one + 0.006)
    assert model.round_seconds(COSTS, 1, bandwidth=153.8) == pytest.approx(one + 1)
    # Of 2, 8 and 22 that are sent together, the last are waited for when the 8 are read.
    last = COSTS.call + 32 * COSTS.check + 32 * COSTS.send
    assert model.round_seconds(COSTS, 32, 0.02) == pytest.approx(last + 0.02 + 22 * COSTS.read)
    assert model.round_seconds(COSTS, 64, serve=0.001, servers=4) == pytest.approx(0.016, rel=0.1)


@pytest.mark.parametrize("latency", [0.001, 0.02])
def test_more_environments_are_not_slower_and_end_at_the_client(latency: float) -> None:
    for rate, limit in ((model.stepped, 1 / COSTS.client), (model.turn, 1 / COSTS.swap)):
        rates = [rate(COSTS, count, latency) for count in (1, 4, 16, 64, 256, 1024, 10_000)]
        assert rates == sorted(rates)
        assert rates[-1] == pytest.approx(limit, rel=0.05)


def test_a_machine_is_limited_by_its_client_and_then_by_its_cores() -> None:
    two = model.machine(COSTS, 0.0, 2)
    # Two cores step two at any time.
    assert two.alone == two.full == reach(2 / 50e-6, CORES, 4)
    assert (two.clients, two.servers) == (1, 1)
    many = model.machine(COSTS, 0.0, 64)
    assert many.alone == reach(50_000, CLIENT, 5)
    assert many.full == reach(64 / 50e-6, CORES, 26 * 5)
    assert (many.clients, many.servers) == (26, 38)
    slow = model.machine(COSTS, 0.02, 64)
    assert slow.alone == slow.full == reach(64 / 0.02005, CORES, 128)
    assert (slow.clients, slow.servers) == (1, 63)


def test_a_cluster_is_limited_by_what_is_exhausted_first() -> None:
    bandwidth = 1.538e9  # 1,000 answers per second.
    large = dataclasses.replace(COSTS, answer_bytes=1_448_000)
    assert model.cluster(large, 0.0, 8, 16, bandwidth).rate == pytest.approx(1000)
    assert model.cluster(COSTS, 0.0, 8, 16, bandwidth, 1) == reach(1 / 20e-6, CLIENT, 5)
    assert model.cluster(COSTS, 0.02, 8, 16, bandwidth, 1).first == SERVERS
    assert model.cluster(COSTS, 0.0, 8, 16, bandwidth) == reach(128 / 50e-6, CORES, 2 * 128)
    assert model.cluster(COSTS, 0.0, 1000, 16, bandwidth).first == NETWORK
