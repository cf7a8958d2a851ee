"""An environment that overrides `discount_spec` sends its discounts, whatever the spec is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client import (
    BatchedEnvironment,
    DmEnvRpcError,
    EnvironmentsFailedError,
    connect,
    create_world,
    make,
)
from dm_env_rpc_client import dm_env_rpc_pb2 as pb
from dm_env_rpc_client.server import Game
from tests.support.serving import one_file_server, own_server
from tests.travelling.environments.of_dm_env import FIRST, MID, Timed

DISCOUNTS = (1.0, 0.99, 0.0)


class Inheriting(Timed):
    """Has dm_env's default spec; its discounts are these, one for each step."""

    discounts: Sequence[Any] = DISCOUNTS

    def __init__(self) -> None:
        script = [(FIRST, None, None), *((MID, 1.0, discount) for discount in self.discounts)]
        spec = specs.Array((), np.int64, "count")
        super().__init__(0, script, spec, action=specs.DiscreteArray(2, name="action"))


class Overriding(Inheriting):
    def discount_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray((), float, 0.0, 1.0, "discount")


class Forwarding(Inheriting):
    """As wrappers do."""

    def discount_spec(self) -> Any:
        return Overriding().discount_spec()


class OverridingByAttribute(Inheriting):
    def __init__(self) -> None:
        super().__init__()
        self.discount_spec = Overriding().discount_spec


class Usual(Inheriting):
    discounts = (1, np.float32(1), np.array(1.0))


class Alone(Game):
    """A game of one player, with an environment."""

    def __init__(self, environment: dm_env.Environment):
        self.environment = environment

    min_players = 1

    def join(self, settings: Mapping[str, Any]) -> Hashable:
        return 0

    def leave(self, player: Hashable) -> None:
        pass

    def action_spec(self, player: Hashable) -> Any:
        return self.environment.action_spec()

    def observation_spec(self, player: Hashable) -> Any:
        return self.environment.observation_spec()

    def reset(self) -> None:
        self._timestep = self.environment.reset()

    def close(self) -> None:
        self.environment.close()

    def step(self, actions: Mapping[Hashable, Any]) -> None:
        self._timestep = self.environment.step(actions[0])

    def timestep(self, player: Hashable) -> dm_env.TimeStep | None:
        return self._timestep


class Sending(Alone):
    def discount_spec(self, player: Hashable) -> Any:
        return Overriding().discount_spec()


def _game(kind: type[Inheriting]) -> Callable[[], Game]:
    return lambda: (Alone if kind in (Inheriting, Usual) else Sending)(kind())


SERVERS: dict[str, Callable[[type[Inheriting]], contextlib.AbstractContextManager[str]]] = {
    "alone": own_server,
    "a thread for each world": lambda kind: own_server(kind, threads="world"),
    "processes": lambda kind: own_server(kind, processes=1),
    "a game": lambda kind: own_server(_game(kind)),
    "a game with a thread": lambda kind: own_server(_game(kind), threads="world"),
    "one file": one_file_server,
}

ROWS = ("alone", "a thread for each world", "processes")


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Any:
    return SERVERS[request.param]


def observed(address: str) -> set[str]:
    """The names of the observations of a world."""
    with connect(address) as connection:
        joining = pb.JoinWorldRequest(world_name=create_world(connection, {}))
        return {spec.name for spec in connection.send(joining).specs.observations.values()}


@pytest.mark.parametrize("kind", [Overriding, Forwarding, OverridingByAttribute])
def test_what_overrides_is_sent(server: Any, kind: type[Inheriting]) -> None:
    with server(kind) as address, make(address) as env:
        assert observed(address) == {"observation", "reward", "discount"}
        env.reset()
        found = [env.step({"action": 1}).discount for _ in DISCOUNTS]
        assert tuple(found) == DISCOUNTS


def test_what_inherits_is_not_sent(server: Any) -> None:
    with server(Usual) as address, make(address) as env:
        assert observed(address) == {"observation", "reward"}
        env.reset()
        assert [env.step({"action": 1}).discount for _ in DISCOUNTS] == [1.0] * 3
    with server(Inheriting) as address, make(address) as env:
        env.reset()
        env.step({"action": 1})
        with pytest.raises(DmEnvRpcError, match=r"discount .*0\.99.* override discount_spec"):
            env.step({"action": 1})


@pytest.mark.parametrize("num_batches", [0, 1])
@pytest.mark.parametrize("name", ROWS)
def test_rows_follow_the_same_rule(name: str, num_batches: int) -> None:
    with (
        SERVERS[name](Overriding) as address,
        BatchedEnvironment(address, 2, num_batches=num_batches) as envs,
    ):
        envs.reset()
        found = [envs.step({"action": [1, 1]}).discount.tolist() for _ in DISCOUNTS]
        assert found == [[discount] * 2 for discount in DISCOUNTS]
    with (
        SERVERS[name](Inheriting) as address,
        BatchedEnvironment(address, 2, num_batches=num_batches) as envs,
    ):
        envs.reset()
        envs.step({"action": [1, 1]})
        with pytest.raises(EnvironmentsFailedError, match="override discount_spec"):
            envs.step({"action": [1, 1]})
