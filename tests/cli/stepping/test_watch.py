"""`dm-env-rpc run` in a game that lacks players says so while it waits, and ends when told to."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Iterator

import pytest

from dm_env_rpc_client import DmEnvRpcError, connect, create_world, join_world
from dm_env_rpc_client.extensions.properties import PropertiesExtension
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


def test_what_steps_wait_for_is_a_property_of_anybody_who_knows_the_world(race: Server) -> None:
    with connect(race.address) as watching, watching.reopen() as playing:
        world = create_world(watching, {"environment": "race"})
        properties = PropertiesExtension(watching)
        assert properties.read(f"waiting_for.{world}") == ""
        with join_world(playing, world) as env:
            waiting = threading.Thread(target=env.reset)
            waiting.start()
            key = f"waiting_for.{world}"
            assert settles(lambda: properties.read(key) == "1 more player(s) must join")
            assert list(properties.list("")) == []
            with watching.reopen() as late, join_world(late, world) as other:
                other.reset()
                waiting.join(20)
                assert properties.read(key) == ""
        with pytest.raises(DmEnvRpcError, match="no world 'nowhere'"):
            properties.read("waiting_for.nowhere")
        catch = create_world(watching, {"environment": "catch"})
        assert properties.read(f"waiting_for.{catch}") == ""
