"""The server in one file looks for a step before it sleeps, and reads most steps in a short way."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dm_env_rpc_client import (
    Connection,
    DmEnvRpcError,
    connect,
    create_world,
    dm_env_rpc_pb2,
    join_world,
    make,
    pack_tensor,
    unpack_tensor,
)
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server as one_file


class Poll:
    """A poll object of a socket to which something comes after a number of looks."""

    def __init__(self, comes_after: int):
        self.looks, self._comes_after = 0, comes_after

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        assert timeout == 0
        self.looks += 1
        return [(3, 1)] if self.looks > self._comes_after else []


NEVER = 1 << 60


class Place:
    """A connection that waits for its only stream, and a clock on which a look takes 10 us."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, processors: int = 2):
        self.now, self.away = 0.0, 0.0
        monkeypatch.setattr(one_file, "_processors", lambda: processors)
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(os, "sched_yield", self._yield)
        self.server = one_file.Server(lambda: None, "localhost:0")
        self._sockets = socket.socketpair()
        self.connection, self.other = (
            one_file._Connection(self.server, each, "client", True) for each in self._sockets
        )
        self.server.connections.add(self.connection)
        self.connection.alone = one_file._Stream(1, "/", 65_535, self.connection.lock)

    def _yield(self) -> None:
        self.now += 1e-5 + self.away

    def looks(self, comes_after: int) -> int:
        """How often it looks for what comes after a number of looks."""
        poll = Poll(comes_after)
        assert self.connection._look(poll) is (poll.looks > comes_after)
        return poll.looks

    def rest(self) -> int:
        """How many waits are without a look."""
        for count in range(5_000):
            if self.looks(3):
                return count
        raise AssertionError("it never looks again")

    def close(self) -> None:
        self.server.stop(0.0)
        for each in self._sockets:
            each.close()


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    made = Place(monkeypatch)
    yield made
    made.close()


def test_a_step_that_comes_soon_is_found(place: Place) -> None:
    assert [place.looks(3) for _ in range(1_000)] == [4] * 1_000


def test_who_waits_in_vain_looks_more_and_more_seldom(place: Place) -> None:
    assert place.looks(NEVER) in (50, 51)  # Half a millisecond.
    rests = []
    for _ in range(9):
        rests.append(place.rest())
        assert place.looks(NEVER)
    assert rests == [16, 32, 64, 128, 256, 512, 1024, 1024, 1024]
    place.rest()
    for _ in range(2_000):
        place.looks(3)
    while place.looks(NEVER):
        pass
    assert place.rest() < 32


def test_beside_another_program_it_rests(place: Place) -> None:
    for _ in range(10):
        place.looks(3)
    place.away = 0.003
    for _ in range(3):
        assert place.looks(1) == 1  # What came meanwhile is found in the poll behind.
    assert place.looks(1) == 0


def test_it_looks_for_one_stream_only(place: Place) -> None:
    stream = place.connection.alone
    place.connection.alone = None  # Several streams, or none.
    assert place.looks(3) == 0
    place.connection.alone = stream
    assert place.looks(3) == 4
    place.server.connections.add(place.other)
    assert place.looks(3) == 0
    place.server.connections.remove(place.other)
    assert place.looks(3) == 4


def test_with_one_processor_it_never_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(Place(monkeypatch, processors=1)) as place:
        assert [place.looks(3) for _ in range(3_000)] == [0] * 3_000


class Limited:
    """Takes actions up to a limit, which is a setting of resets."""

    reset_settings = ("limit",)

    def __init__(self, limit: int = 5):
        self._limit = limit

    def configure(self, settings: dict[str, Any]) -> None:
        self._limit = settings["limit"]

    def action_spec(self) -> Any:
        return one_file.BoundedArray((), np.int32, 0, self._limit)

    def observation_spec(self) -> Any:
        return {"action": one_file.Array((), np.int32)}

    def reset(self) -> Any:
        return one_file.TimeStep(one_file.FIRST, None, None, {"action": np.int32(-1)})

    def step(self, action: Any) -> Any:
        return one_file.TimeStep(one_file.MID, 1.0, 1.0, {"action": action})


def step(connection: Connection, action: int) -> int:
    actions = {1: pack_tensor(np.int32(action))}
    request = dm_env_rpc_pb2.StepRequest(actions=actions, requested_observations=[1])
    return int(unpack_tensor(connection.send(request).observations[1]))


def test_a_step_that_was_read_before_is_read_again_where_the_specs_are_others() -> None:
    with one_file.serve(Limited, "localhost:0") as server, connect(server.address) as connection:
        for limit in (5, 3, 5):
            world = create_world(connection, {"limit": limit})
            with join_world(connection, world) as env:
                env.reset()
                assert [step(connection, each) for each in (3, 2, 3)] == [3, 2, 3]
                if limit == 5:
                    assert step(connection, 4) == 4
                    env.reset({"limit": 3})
                with pytest.raises(DmEnvRpcError, match=r"4, outside its bounds \[0, 3\]"):
                    step(connection, 4)
            with pytest.raises(DmEnvRpcError, match="a step request is not allowed"):
                step(connection, 3)


def test_more_steps_than_are_kept_are_answered() -> None:
    with (
        one_file.serve(Limited, "localhost:0") as server,
        make(server.address, {"limit": 999}) as env,
    ):
        env.reset()
        for _ in range(2):
            assert [step(env.connection, each) for each in range(600)] == list(range(600))
        (session,) = server.sessions
        assert len(session._steps) == 256


@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "u1", "i4", "i8", "u4", "u8", "?"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2), (300,)], ids=str)
def test_a_tensor_is_the_same_read_the_short_and_the_long_way(
    dtype: str, shape: tuple[int, ...]
) -> None:
    chance = random.Random(5)
    spec = one_file.Array(shape, dtype)
    short, long = (one_file._Field(1, "a", spec, "action") for _ in range(2))
    long._payload = b""
    written = one_file._write_tensor(short.kind, np.ones(shape, dtype))
    assert (short._read_block(written) is not None) == (dtype in ("f4", "f8", "i1", "u1"))
    read = [0, 0]
    for _ in range(600):
        mutated = bytearray(written)
        for _ in range(chance.randrange(3)):
            at = chance.randrange(len(mutated))
            mutated[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
            mutated = mutated or bytearray(b"\x00")
        found: list[tuple[Any, ...]] = []
        for field in (short, long):
            try:
                value = field.read(bytes(mutated), dict(one_file.LIMITS))
                found.append((value.dtype, value.shape, value.tobytes()))
                assert value.shape == () or value.flags.writeable
            except (one_file.Refusal, one_file._Malformed) as error:
                found.append((type(error), str(error)))
        assert found[0] == found[1], bytes(mutated)
        read[len(found[0]) == 3] += 1
    assert all(read)
