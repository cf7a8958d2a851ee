"""Batched worlds are stepped as environments with a stream each are: value for value."""

from __future__ import annotations

import signal
from typing import Any

import dm_env
import numpy as np
import pytest
import tree

from dm_env_rpc_client import (
    BatchedEnvironment,
    DmEnvAdaptor,
    DmEnvRpcError,
    EnvironmentsFailedError,
    Restart,
    SpecError,
    make,
)
from dm_env_rpc_client.server import Catch, Server, serve
from dm_env_rpc_client.testing import FaultProxy
from tests.adaptors.sameness import same
from tests.support.environments import Dice, Echo
from tests.support.scripted import served_echo, settles
from tests.support.serving import serving

TRANSPORTS = ["http2"]

pytestmark = pytest.mark.filterwarnings("ignore::dm_env_rpc_client.RestartWarning")

BOTH = pytest.mark.parametrize("num_batches", [0, None, 2], ids=["streams", "batch", "batches"])


def rolls(count: int, seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    push = random.uniform([-1, -2], [1, 2], (count, 2)).astype(np.float32)
    words = np.array([f"w{random.integers(9)}" for _ in range(count)], object)
    return {"bet": random.integers(0, 7, count), "hand": {"push": push}, "word": words}


dice = serving(Dice)


def settings(index: int) -> dict[str, Any]:
    return {"seed": 10 + index, "name": f"row{index}"}


@pytest.mark.parametrize("num_batches", [1, 3])
def test_batches_are_sent_and_received(dice: Server, num_batches: int) -> None:
    """Each row is stepped as often as its partner; what is received is compared row by row."""
    count, random = 6, np.random.default_rng(3)
    with (
        BatchedEnvironment(dice.address, count, settings, num_batches=0) as alone,
        BatchedEnvironment(dice.address, count, settings, num_batches=num_batches) as batched,
    ):
        idle, under_way = set(range(num_batches)), 0
        for number in range(300):
            if idle and (not under_way or random.random() < 0.6):
                some = random.permutation(sorted(idle))[: random.integers(1, len(idle) + 1)]
                rows = random.permutation([r for r in range(count) if r % num_batches in some])
                actions = rolls(len(rows), number)
                alone.send(actions, rows)
                batched.send(actions, rows)
                idle -= set(some.tolist())
                under_way += len(rows)
                continue
            # Others may have arrived first, so all are received.
            expected, ids = alone.recv(under_way)
            found, own = batched.recv(under_way)
            assert sorted(own) == sorted(ids)
            assert same(ordered(found, own), ordered(expected, ids))
            idle, under_way = set(range(num_batches)), 0


@pytest.mark.parametrize("num_batches", [None, 2])
def test_some_rows_of_a_batch_do_not_step_alone(dice: Server, num_batches: int | None) -> None:
    with BatchedEnvironment(dice.address, 4, settings, num_batches=num_batches) as env:
        env.reset()
        text = r"environments \[2\] are rows of one batch, .* \[0,.* together; send actions for "
        with pytest.raises(SpecError, match=text):
            env.send(rolls(3, 0), [1, 2, 3] if num_batches else [2])
        with pytest.raises(SpecError, match="min_envs=1: 0 environments have pending steps"):
            env.recv()
        env.send(rolls(4, 0))
        assert len(env.recv(4, 4)[1]) == 4


def test_a_server_says_that_it_takes_no_step_mask(dice: Server) -> None:
    # A client from before asks for one, and then makes its batches without.
    with pytest.raises(DmEnvRpcError, match="'step_mask' is not supported, because all") as no:
        make(dice.address, {"num_envs": 2, "step_mask": True})
    assert no.value.code_name == "INVALID_ARGUMENT"


def ordered(timestep: dm_env.TimeStep, ids: Any) -> dm_env.TimeStep:
    """The rows in the order of the environments."""
    rows: dm_env.TimeStep = tree.map_structure(lambda each: each[np.argsort(ids)], timestep)
    return rows


@BOTH
def test_settings_of_rows_reset_what_they_name(num_batches: int | None) -> None:
    with serve(Catch) as server:
        with BatchedEnvironment(server.address, 4, num_batches=num_batches) as env:
            seeds = [{"seed": 3}, {"seed": 4}, {"seed": 3}, {}]
            for made in (seeds, seeds.__getitem__):
                with BatchedEnvironment(server.address, 4, made, num_batches=num_batches) as own:
                    boards = own.reset().observation["board"]
                np.testing.assert_array_equal(boards[:3], env.reset(seeds).observation["board"][:3])
            first = env.reset(seeds).observation["board"]
            np.testing.assert_array_equal(first[0], first[2])
            again = env.reset(seeds).observation["board"]
            np.testing.assert_array_equal(first[:3], again[:3])
            others = "a different observation_spec.*'board'"
            with pytest.raises((SpecError, EnvironmentsFailedError), match=others):
                env.reset([{"rows": 5}, {"rows": 6}, {"rows": 5}, {"rows": 5}])
            assert env.reset({"rows": 5}).observation["board"].shape == (4, 5, 5)
            assert env.observation_spec()["board"].shape == (4, 5, 5)
            assert env.step({"paddle": [1] * 4}).mid().all()
            assert env.reset({"rows": 4}).observation["board"].shape == (4, 4, 5)
        assert settles(lambda: server.world_count == 0)


class Own(DmEnvAdaptor):
    """Has rewards of its own."""


@pytest.mark.parametrize(
    ("arguments", "worlds"),
    [
        ({"create_world_settings": {"length": 5}}, 1),
        ({"create_world_settings": [{"length": 5}, {"length": 6}, {"length": 7}]}, 1),
        ({"create_world_settings": [{"length": 5}, {"seconds": 0.0}, {}]}, 3),
        ({"adaptor_class": Own}, 3),
        ({"num_batches": 0}, 3),
        ({"num_batches": 2}, 2),
        ({"num_batches": 100}, 3),
        ({"requested_observations": ["val*"]}, 1),
    ],
)
def test_what_cannot_be_a_batch_has_streams(arguments: dict[str, Any], worlds: int) -> None:
    with serve(Echo) as server, BatchedEnvironment(server.address, 3, **arguments) as env:
        assert server.world_count == worlds
        env.reset()
        assert env.step({"value": [1, 2, 3]}).observation["value"].tolist() == [1, 2, 3]


@BOTH
def test_a_lost_world_ends_its_sequences_and_is_started_again(num_batches: int | None) -> None:
    restart = Restart(attempts=2, backoff=0.05)
    with served_echo() as first, serve(Echo) as second, BatchedEnvironment(
        [first.address, second.address], 4, {"length": 4}, num_batches=num_batches,
        restart=restart, request_timeout=20.0, timeout=2.0,
    ) as env:  # fmt: skip
        env.reset()
        env.step({"value": [1, 2, 3, 4]})
        first.signal(signal.SIGKILL)
        lost = env.step({"value": [5, 6, 7, 8]})
        assert lost.step_type.tolist() == [2, 1, 2, 1]
        assert lost.observation["value"].tolist() == [1, 6, 3, 8]
        assert lost.discount.tolist() == [1, 1, 1, 1]
        assert lost.reward.tolist() == [0, 1, 0, 1]
        with pytest.raises(EnvironmentsFailedError) as caught:  # It does not come back.
            env.step({"value": [1, 1, 1, 1]})
        assert list(caught.value.failures) == [0, 2]


@BOTH
def test_a_row_that_begins_when_its_world_is_lost_is_not_kept_by_the_others(
    num_batches: int | None,
) -> None:
    """Row 0 has ended: it begins in the new world at once, and goes on while row 1 begins there."""
    lengths = [{"length": 2}, {"length": 9}]
    with (
        serve(Echo) as server,
        FaultProxy(server.address) as proxy,
        BatchedEnvironment(
            proxy.address, 2, lengths, num_batches=num_batches, restart=Restart(backoff=0.01)
        ) as env,
    ):
        env.reset()
        found = []
        for step in range(1, 8):
            if step == 3:
                proxy.reset()
            timestep = env.step({"value": [10 * step, 10 * step + 1]})
            found.append([timestep.step_type.tolist(), timestep.observation["value"].tolist()])
        assert found == [
            [[1, 1], [10, 11]],
            [[2, 1], [20, 21]],
            [[0, 2], [-1, 21]],
            [[1, 0], [40, -1]],
            [[2, 1], [50, 51]],
            [[0, 1], [-1, 61]],
            [[1, 1], [70, 71]],
        ]
        assert env.restarts == 2
