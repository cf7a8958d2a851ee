"""What a server imports for environments of each library."""

from __future__ import annotations

import pytest

from tests.support.programs import run_python

_CART_POLE = """
import gymnasium
def make():
    return gymnasium.make("CartPole-v1")
"""

_DUEL = """
import gymnasium, pettingzoo
class make(pettingzoo.ParallelEnv):
    possible_agents = ["left", "right"]
    def action_space(self, agent):
        return gymnasium.spaces.Discrete(3)
    observation_space = action_space
"""


_CATCH = "from dm_env_rpc_client.server import Catch as make"


@pytest.mark.parametrize(
    ("library", "program", "served"),
    [
        ("gymnasium", _CART_POLE, "GymnasiumEnvironment"),
        ("pettingzoo", _DUEL, "PettingZooGame"),
        ("dm_env", _CATCH, "Catch"),
    ],
)
def test_a_server_converts_environments_without_the_client(
    library: str, program: str, served: str
) -> None:
    program += """
import sys
from dm_env_rpc_client.server.construction import construct
print(type(construct(make, {})).__name__, *sys.modules)
"""
    found, *modules = run_python("-c", program).stdout.split()
    assert found == served
    package = "dm_env_rpc_client"
    assert (f"{package}.adaptors" in modules) == (library != "dm_env")
    assert not {f"{package}.client", f"{package}.environment"} & set(modules)
