"""Steps import nothing: an interrupt of an import can leave Python's import lock taken."""

from __future__ import annotations

import pytest

from tests.reliability.connections.counting import WAYS
from tests.support.programs import run_python

_PROGRAM = """
import sys
from dm_env_rpc_client.server import serve
from tests.reliability.connections.counting import WAYS, counting

way = WAYS[sys.argv[1]]
with serve(counting) as server:
    env = way.opened(server.address)
    before = set(sys.modules)
    for _ in range(3):
        way.step(env)
    print(*sorted(set(sys.modules) - before))
    env.close()
"""


@pytest.mark.parametrize("way", WAYS)
def test_a_step_imports_nothing(way: str) -> None:
    assert run_python("-c", _PROGRAM, way).stdout.split() == []
