"""How often an environment waits for a server that is far away."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from dm_env_rpc_client import BatchedEnvironment, make
from dm_env_rpc_client.server import Catch, Server
from tests.support.distance import Distance
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


def test_an_environment(far: Distance) -> None:
    with far.counted() as making:
        env = make(far.address)
    with far.counted() as resetting:
        env.reset()
    with far.counted() as stepping:
        env.step({"paddle": 0})
    with far.counted() as unrolling:
        steps = env.unroll({"paddle": np.zeros(_STEPS, np.int32)})
    with far.counted() as closing:
        env.close()
    assert len(steps.reward) == _STEPS
    assert (making, resetting, stepping, unrolling, closing) == ([2], [1], [1], [1], [1])


def test_sixty_four_environments_in_a_batch(far: Distance) -> None:
    with far.counted() as making:
        env = BatchedEnvironment(far.address, _ENVIRONMENTS)
    with far.counted() as resetting:
        env.reset()
    with far.counted() as stepping:
        env.step({"paddle": np.zeros(_ENVIRONMENTS, np.int32)})
    with far.counted() as closing:
        env.close()
    # The server says whether it makes batches, and then as one environment.
    assert (making, resetting, stepping, closing) == ([3], [1], [1], [1])
