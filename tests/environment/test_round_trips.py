"""How often an environment waits for a server that is far away."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from dm_env_rpc_client import BatchedEnvironment, make
from dm_env_rpc_client.server import Catch, Server
from tests.environment.distance import Distance
from tests.support.serving import serving

TRANSPORTS = ["http2"]
"""What grpcio does before a call is its own."""

_STEPS = 200
_ENVIRONMENTS = 64


server = serving(Catch)


@pytest.fixture
def far(server: Server) -> Iterator[Distance]:
    with Distance(server.address, 0.3) as distance:
        yield distance


def trips(far: Distance, *calls: Callable[[], object]) -> list[int]:
    """How many round trips each call takes."""
    found = []
    for call in calls:
        with far.counted() as counted:
            call()
        found += counted
    return found


def test_an_environment(far: Distance) -> None:
    with far.counted() as making:
        env = make(far.address)
    actions = {"paddle": np.zeros(_STEPS, np.int32)}
    calls = (env.reset, lambda: env.step({"paddle": 0}), lambda: env.unroll(actions), env.close)
    assert (making, trips(far, *calls)) == ([2], [1, 1, 1, 1])


def test_sixty_four_environments_in_a_batch(far: Distance) -> None:
    with far.counted() as making:
        env = BatchedEnvironment(far.address, _ENVIRONMENTS)
    action = {"paddle": np.zeros(_ENVIRONMENTS, np.int32)}
    # The server says whether it makes batches, and then as one environment.
    counted = trips(far, env.reset, lambda: env.step(action), env.close)
    assert (making, counted) == ([3], [1, 1, 1])
