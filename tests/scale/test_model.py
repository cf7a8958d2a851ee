"""The calculation: what follows from costs that are given."""

from __future__ import annotations

import dataclasses
import math
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
    assert list(model.batches(2)) == [2]
    assert list(model.batches(20)) == [2, 8, 10]
    assert list(model.batches(1000)) == [2, 8, 32, 128, 512, 318]


def test_a_step_of_one_environment_is_the_sum_of_its_parts() -> None:
    parts = COSTS.call + COSTS.client
    assert model.round_seconds(COSTS, 1) == pytest.approx(parts)
    assert model.round_seconds(COSTS, 1, 0.005) == pytest.approx(parts + 0.005)
    assert model.round_seconds(COSTS, 1, 0.005, serve=0.001) == pytest.approx(parts + 0.006)
    assert model.round_seconds(COSTS, 1, bandwidth=153.8) == pytest.approx(parts + 1)


def test_what_is_sent_after_the_first_batch_is_hidden_behind_the_latency() -> None:
    # When answers are read slowly, the next ones have always come by then.
    costs = dataclasses.replace(COSTS, read=30e-6)
    first = costs.call + 32 * costs.check + 2 * costs.send
    expected = first + 0.02 + 32 * costs.read
    assert model.round_seconds(costs, 32, 0.02) == pytest.approx(expected)
    # Of 2, 8 and 22, the last are waited for when the 8 are read.
    last = COSTS.call + 32 * COSTS.check + 32 * COSTS.send
    assert model.round_seconds(COSTS, 32, 0.02) == pytest.approx(last + 0.02 + 22 * COSTS.read)
    # Without a latency the client is never idle.
    assert model.round_seconds(COSTS, 32) == pytest.approx(COSTS.call + 32 * COSTS.client)


def test_a_server_process_answers_one_after_another_and_several_share_the_work() -> None:
    one = model.round_seconds(COSTS, 64, serve=0.001)
    assert one == pytest.approx(0.064, rel=0.02)
    assert model.round_seconds(COSTS, 64, serve=0.001, servers=4) == pytest.approx(0.016, rel=0.1)


def test_arrays_that_are_too_large_to_be_kept_cost_more() -> None:
    few, many = (
        dataclasses.replace(COSTS, answer_bytes=1 << 20, fresh=seconds, piled=3 * seconds)
        for seconds in (0.0, 1e-9)
    )
    assert model.round_seconds(few, 32) == model.round_seconds(many, 32)
    more = model.round_seconds(many, 33) - model.round_seconds(few, 33)
    assert more == pytest.approx(33 * (1 << 20) * 3e-9)
    assert model.turn(many, 100, 0.0) < model.turn(few, 100, 0.0)


@pytest.mark.parametrize("latency", [0.0, 0.001, 0.02])
def test_no_number_of_environments_goes_beyond_the_client(latency: float) -> None:
    rates = [model.stepped(COSTS, count, latency) for count in (1, 4, 16, 64, 256, 1024, 4096)]
    assert rates == sorted(rates)
    assert rates[-1] < 1 / COSTS.client
    assert model.stepped(COSTS, 100_000, latency) == pytest.approx(1 / COSTS.client, rel=0.05)


def test_who_waits_for_any_is_limited_by_the_latency_and_then_by_the_client() -> None:
    assert model.turn(COSTS, 1, 0.02) == pytest.approx(1 / (0.02 + 45e-6))
    assert model.turn(COSTS, 8, 0.02) == pytest.approx(8 / 0.02, rel=0.05)
    assert model.turn(COSTS, 10_000, 0.02) == pytest.approx(1 / COSTS.swap, rel=0.05)
    rates = [model.turn(COSTS, count, 0.005) for count in (1, 4, 16, 64, 256, 1024)]
    assert rates == sorted(rates)


def test_the_least_number_that_reaches_a_share_is_found() -> None:
    assert model.busy_from(lambda count: count, 100, 0.9) == 90
    assert model.busy_from(lambda count: count, 1) == 1
    assert model.busy_from(lambda count: 1.0, 2) == model._MOST


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
    small, large = COSTS, dataclasses.replace(COSTS, answer_bytes=1_448_000)
    assert model.cluster(large, 0.0, 8, 16, bandwidth, 1).first == NETWORK
    assert model.cluster(large, 0.0, 8, 16, bandwidth).rate == pytest.approx(1000)
    one = model.cluster(small, 0.0, 8, 16, bandwidth, 1)
    assert one == reach(1 / 20e-6, CLIENT, 5)
    assert model.cluster(small, 0.02, 8, 16, bandwidth, 1).first == SERVERS
    actors = model.cluster(small, 0.0, 8, 16, bandwidth)
    assert actors == reach(128 / 50e-6, CORES, 2 * 128)
    assert model.cluster(small, 0.0, 1000, 16, bandwidth).first == NETWORK
    assert model.cluster(small, 0.0, 8, 16, math.inf, 10**6).first == SERVERS
