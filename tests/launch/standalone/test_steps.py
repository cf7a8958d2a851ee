"""Step types, rewards and actions at the one-file server: as at the package's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from dm_env_rpc_client import DmEnvRpcError, make
from dm_env_rpc_client.server import Server
from tests.launch.standalone import hosted_steps
from tests.launch.standalone.interpreters import NEWEST, OLDEST, interpreter, served
from tests.server.batches.steps import play
from tests.support.serving import serving


@pytest.fixture(scope="module", params=["this Python", OLDEST, NEWEST])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    version = request.param
    python = sys.executable if version == "this Python" else interpreter(version)
    with served(python, "hosted_steps:make") as server:
        yield server.address


own = serving(hosted_steps.Scripted)

SCRIPTS: Any = hosted_steps.SCRIPTS
REWARDS: Any = hosted_steps.REWARDS

TEXTS = {
    "seven": "step of Scripted returned a TimeStep of the type 7",
    "None": "step of Scripted returned a TimeStep of the type None",
    "a text": "step of Scripted returned a TimeStep of the type 'LAST'",
    "FIRST in the middle": "step of Scripted returned a FIRST step in the middle of a sequence",
    "begins with LAST": "reset of Scripted returned a LAST TimeStep",
    "begins with seven": "reset of Scripted returned a TimeStep of the type 7",
}


@pytest.mark.parametrize("own_discount", [False, True])
@pytest.mark.parametrize("script", SCRIPTS)
def test_steps(address: str, own: Server, script: str, own_discount: bool) -> None:
    settings = {"script": script, "own_discount": own_discount}
    count = len(SCRIPTS[script])
    found, expected = (play(each, settings, count) for each in (address, own.address))
    for one, other in zip(found, expected, strict=True):
        if isinstance(one, str):
            assert isinstance(other, str)
            assert TEXTS[script] in one
            assert TEXTS[script] in other
        else:
            assert one == other
    assert sum(isinstance(one, str) for one in found) == (script in TEXTS)


@pytest.mark.parametrize("reward", REWARDS)
def test_rewards_and_actions(address: str, reward: str) -> None:
    given = REWARDS[reward]
    with make(address, {"reward": reward}, unwrap_single=True) as env:
        env.reset()
        if reward in ("text", "None", "complex", "two", "list"):
            text = "step of Rewarding returned a reward that is not a number: got"
            with pytest.raises(DmEnvRpcError, match=text):
                env.step(1)
        else:
            timestep = env.step(1)
            assert timestep.reward == float(given)
            assert timestep.observation == 1  # The action is as its space samples it.
