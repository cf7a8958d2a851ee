"""Row 9: steps with identities, while threads, futures and unrolls share connections."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dm_env_rpc_client import make
from dm_env_rpc_client.server import serve
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support.environments import Echo

CONNECTIONS = 3
LENGTHS = (1, 7, 64)
"""Of what is unrolled or submitted at once."""


def numbers_of(timesteps: Any) -> list[int]:
    found: list[int] = np.atleast_1d(timesteps.observation["value"]).tolist()
    return found


@pytest.mark.row(9)
@counts(6_000, 1_000_000)
def test_steps_of_threads_futures_and_unrolls_get_their_own_answers(count: int, seen: Seen) -> None:
    """At times a connection has one user, whose steps go the short way; at times it has many."""
    wrong: list[tuple[list[int], Any]] = []
    kinds = ("step", "submit_step", "unroll")
    taken = dict.fromkeys(kinds, 0)
    numbers = itertools.count(1)
    left = threading.Lock()

    def ways(env: Any) -> dict[str, Callable[[list[int]], list[int]]]:
        def step(wanted: list[int]) -> list[int]:
            return [number for each in wanted for number in numbers_of(env.step({"value": each}))]

        def submit(wanted: list[int]) -> list[int]:
            futures = [env.submit_step({"value": each}) for each in wanted]
            return [number for future in futures for number in numbers_of(future.result())]

        def unroll(wanted: list[int]) -> list[int]:
            return numbers_of(env.unroll({"value": np.array(wanted)}))

        return dict(zip(kinds, (step, submit, unroll), strict=True))

    def work(env: Any, seed: int) -> None:
        chance, by_kind = random.Random(seed), ways(env)
        while sum(taken.values()) < count and not wrong:
            kind = chance.choice(kinds)
            wanted = [next(numbers) for _ in range(chance.choice(LENGTHS))]
            found = by_kind[kind](wanted)
            if found != wanted:
                wrong.append((wanted, found))
            with left:
                taken[kind] += len(wanted)

    with serve(Echo) as server:
        envs = [make(server.address, request_timeout=60) for _ in range(CONNECTIONS)]
        try:
            for env in envs:
                env.reset()
            # One, two and three threads for a connection.
            users = [env for index, env in enumerate(envs) for _ in range(index + 1)]
            threads = [
                threading.Thread(target=work, args=(env, seed)) for seed, env in enumerate(users)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            for env in envs:
                env.close()
    seen(steps=sum(taken.values()), wrong_answers=len(wrong), **taken)
    assert wrong == []
    assert sum(taken.values()) >= count
    assert min(taken.values()) > 0
