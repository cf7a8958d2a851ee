"""`dm-env-rpc run` in a game that lacks players says so while it waits, and ends when told to."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator

import pytest

from dm_env_rpc_client import connect, join_world
from dm_env_rpc_client.server import Catch, Race, Server, serve
from tests.cli.commands import started
from tests.support.scripted import settles
from tests.support.stopwatch import patience


@pytest.fixture
def race() -> Iterator[Server]:
    with serve({"race": Race, "catch": Catch}) as server:
        yield server
        assert server.errors == []


CREATE = ("--create", "environment=race", "--create", "length=3")


def test_who_is_missing_and_how_to_join_and_ctrl_c(race: Server) -> None:
    process = started("run", race.address, "--timeout", "60", *CREATE)
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "waiting: 1 more player(s) must join; others join with: dm-env-rpc run" in line
    assert re.search(rf"{race.address} --world '[^']+'", line)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=patience(20))
    assert (process.returncode, out, errors.strip()) == (130, "", "error: interrupted")
    assert settles(lambda: (race.agent_count, race.world_count) == (0, 0))


def test_it_goes_on_when_all_are_there_and_says_who_does_not_act(race: Server) -> None:
    process = started(
        "run", race.address, "--timeout", "60", "--json", "--episodes", "1", "--policy", "constant",
        *CREATE,
    )  # fmt: skip
    assert process.stderr is not None
    found = re.search(r"--world '([^']+)'", process.stderr.readline())
    assert found is not None
    with connect(race.address) as connection, join_world(connection, found[1]) as other:
        first = other.reset()
        assert first.observation["positions"].tolist() == [0, 0]
        # This one does not act, and it is told of at once.
        line = process.stderr.readline()
        assert "waiting: player 1 has not stepped" in line
        while not other.step({"move": 1}).last():
            pass
        out, _ = process.communicate(timeout=patience(20))
        (episode,) = json.loads(out)["episodes"]
        assert (episode["ended"], episode["length"], process.returncode) == ("terminated", 3, 0)
