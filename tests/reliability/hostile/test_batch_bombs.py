"""Row 58: batches that are too large are refused before memory is taken for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from dm_env import specs
from google.rpc import code_pb2

from dm_env_rpc_client import DmEnvRpcError, make
from dm_env_rpc_client.client.connecting import connect
from dm_env_rpc_client.environment.worlds import create_world
from dm_env_rpc_client.transports.endpoint import Transport
from tests.adaptors.gymnasium.known import cart_pole, cart_poles
from tests.reliability.hostile.served import Served as Process
from tests.reliability.hostile.served import served as hosted
from tests.reliability.recording import Seen
from tests.server.structures.hosted import Structured

pytestmark = pytest.mark.row(58)

TRANSPORTS = ["http2"]  # Both ends of each test are told theirs.

MIB = 1 << 20
MOST_MIB = 16
MILLION = 1_000_000


def large(side: int = 1024) -> Structured:
    """Has an observation float32 [side, side], for which it takes memory with a step only."""
    return Structured(specs.Array((side, side), np.float32), specs.DiscreteArray(2))


FACTORIES: dict[str, Callable[..., Any]] = {
    "Large": large,
    "carts": cart_pole,
    "cart_batches": cart_poles,
}


class Served(NamedTuple):
    """A server in another process, and the transport of both ends."""

    process: Process
    transport: Transport

    @property
    def address(self) -> str:
        return self.process.address


@pytest.fixture(
    scope="module",
    params=[(factory, transport) for factory in FACTORIES for transport in ("http2", "grpc")],
    ids="-".join,
)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    factory, transport = request.param
    with hosted(environment=FACTORIES[factory], transport=transport) as process:
        yield Served(process, transport)


LARGE = pytest.mark.parametrize(
    "served", [("Large", "http2"), ("Large", "grpc")], indirect=True, ids="-".join
)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_envs": MILLION},
        {"num_envs": 2**62},
        {"num_envs": -1},
        {"num_envs": 0},
        {"num_envs": 16_385},
        {"num_envs": True},
        {"num_envs": 1e6},
        {"num_envs": "1000000"},
        {"num_envs": [MILLION, MILLION]},
        {"num_envs": MILLION, "rows.seed": [1, 2]},
    ],
    ids=str,
)
def test_numbers_of_environments_are_bounded(
    served: Served, settings: dict[str, Any], seen: Seen
) -> None:
    refused(served, settings, "num_envs", seen)


@LARGE
@pytest.mark.parametrize(
    "settings",
    [
        {"num_envs": 33},
        {"num_envs": 16_384},
        {"num_envs": 16_384, "side": 64},
        {"num_envs": 2, "side": 10_000},
        {"num_envs": 16_384, "side": 2**30},
    ],
    ids=str,
)
def test_arrays_of_all_rows_are_bounded(
    served: Served, settings: dict[str, Any], seen: Seen
) -> None:
    refused(served, settings, "the observations of", seen)


@LARGE
def test_a_batch_at_the_limit_is_served(served: Served) -> None:
    settings = {"num_envs": 31}
    with make(served.address, settings, transport=served.transport, timeout=60) as env:
        assert env.reset().observation["observation"].shape == (31, 1024, 1024)


def refused(served: Served, settings: dict[str, Any], text: str, seen: Seen) -> None:
    """Asserts that a world is refused, and that the server takes no memory for it."""
    with connect(served.address, transport=served.transport) as connection:
        # What a first connection and a first error take is taken before.
        with pytest.raises(DmEnvRpcError):
            create_world(connection, {"num_envs": 0})
        before = served.process.watch_memory()
        with pytest.raises(DmEnvRpcError, match=text) as caught:
            create_world(connection, settings)
        taken = (served.process.peak() - before) / MIB
    assert caught.value.code == code_pb2.INVALID_ARGUMENT
    assert taken < MOST_MIB
    seen(refused=1, more_mib=taken)
