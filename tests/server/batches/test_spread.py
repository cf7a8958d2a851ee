"""Batches of a server of several processes, whose rows are spread over these."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dm_env_rpc_client import (
    ConnectionLostError,
    DmEnvAdaptor,
    DmEnvRpcError,
    connect,
    create_world,
    destroy_world,
    join_world,
    make,
)
from dm_env_rpc_client.adaptors.gymnasium.info_observation import extras_of_rows
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.server import Server
from dm_env_rpc_client.server.processes.shared_arrays import Form, SharedArrays
from tests.adaptors.sameness import same
from tests.server import hosted
from tests.server.batches.served import SERVED
from tests.server.batches.test_batches import (
    actions_of,
    begun,
    push,
    stepped,
)
from tests.server.worker_processes import START_SECONDS, are_complete, processes_of
from tests.support.scripted import descriptor_count, settles
from tests.support.serving import serving

ROWS = 5


_spread = serving(SERVED, processes=2)


@pytest.fixture
def spread(_spread: Server) -> Iterator[Server]:
    """A server of two processes; nothing is left on it."""
    assert settles(lambda: are_complete(_spread), START_SECONDS)
    yield _spread
    assert settles(lambda: (_spread.world_count, _spread.stats().streams) == (0, 0))


single = serving(SERVED)
"""The same in one process."""


def told(call: Callable[[], Mapping[str, Any]]) -> Any:
    """What a client is told, or the text of the error."""
    try:
        return {name: np.array(value) for name, value in call().items()}
    except DmEnvRpcError as error:
        return error.message


def steps(env: DmEnvAdaptor, count: int = 6) -> Iterator[Any]:
    random = np.random.default_rng(0)
    for _ in range(count):
        yield told(lambda: stepped(env, actions_of(env, random)))


def only_steps(env: DmEnvAdaptor) -> Iterator[Any]:
    yield told(lambda: begun(env))
    yield from steps(env, 15)


def resets(*each: Mapping[str, Any]) -> Callable[[DmEnvAdaptor], Iterator[Any]]:
    """Plays, with resets by these settings between steps."""

    def play(env: DmEnvAdaptor) -> Iterator[Any]:
        for settings in ({}, *each):
            yield told(lambda: begun(env, settings))  # noqa: B023  # runs now
            yield from steps(env)

    return play


SOME = [True, False, False, True, False]
LENGTHS = {"rows.length": [2, 3, 5, 2, 4]}

PLAYED: Mapping[str, tuple[dict[str, Any], Callable[[DmEnvAdaptor], Iterator[Any]]]] = {
    "numbers": ({"environment": "counting", **LENGTHS}, only_steps),
    "discounts": ({"environment": "discounted", **LENGTHS}, only_steps),
    "texts": ({"environment": "robot", "joints": 2}, only_steps),
    "errors": ({"environment": "counting", "rows.fails_at": [-1, 2, 3, 2, -1]}, only_steps),
    "wrong values": ({"environment": "liar"}, only_steps),
    "long errors": ({"environment": "wordy"}, only_steps),
    "without default actions": (
        {"environment": "catch", "rows.seed": [1, 2, 3, 4, 5]}, only_steps
    ),
    "settings that a row refuses": (
        {"environment": "seeded"},
        resets({"seed": 3}, {"seed": 5, "rows.options": [*["{}"] * 4, "["]}, {}, {"seed": 7}),
    ),
    "environments that do not close": (
        {"environment": "valued", "rows.value": [0, 1, 2, 3, 4], "fails_to_close": 3},
        resets({"value": 77, "size": 2}, {}),
    ),
    "masks": (
        {"environment": "counting", **LENGTHS},
        resets({"reset_mask": SOME}, {}, {"reset_mask": [not each for each in SOME]}),
    ),
    "settings of rows": (
        {"environment": "counting"},
        resets(LENGTHS, {"reset_mask": SOME, "rows.length": [1, 2, 2, 9, 9]}, {"length": 3}),
    ),
    "other specs": (
        {"environment": "counting"},
        resets({"size": 4}, {"reset_mask": SOME, "size": 3}, {"reset_mask": SOME, "size": 4}),
    ),
    "other specs of a half": (
        {"environment": "counting"}, resets({"reset_mask": [True] * 2 + [False] * 3, "size": 4})
    ),
    "refused settings": (
        {"environment": "counting"},
        resets({"reset_mask": [False] * 5}, {"rows.length": [1]}, {"colour": 3}, {"size": "x"}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLAYED)
def test_a_spread_batch_is_as_one_in_one_process(spread: Server, single: Server, name: str) -> None:
    settings, play = PLAYED[name]
    seen = []
    for server in (single, spread):
        with make(server.address, {"num_envs": ROWS, **settings}) as env:
            seen.append(list(play(env)))
    assert len(seen[0]) > 6
    for number, (expected, found) in enumerate(zip(*seen, strict=True)):
        assert same(found, expected), (number, found, expected)


@pytest.mark.parametrize(
    ("environment", "settings", "text"),
    [
        ("counting", {"num_envs": 0}, "a batch has 1 to"),
        ("counting", {"num_envs": 2.0}, "expected an integer, got 2.0"),
        ("counting", {"num_envs": 3, "rows.length": [1, 2]}, r"'rows.length' has the shape \[2\]"),
        ("counting", {"num_envs": 3, "rows.length": 2}, r"expected \[3, ...\], one value per row"),
        ("counting", {"num_envs": 3, "colour": 2}, "known settings: length, fails_at, size"),
        ("counting", {"num_envs": 3, "step_mask": True}, "'step_mask'"),
        ("large", {"num_envs": 64}, "536872448 bytes, but the limit for a batch is 134217728"),
        ("boundless", {"num_envs": 2}, "would take 36893488147419103264 bytes"),
        ("varying", {"num_envs": 2, "rows.seed": [0, 1]}, "row 1 of the batch has a different"),
        ("varying", {"num_envs": 4, "rows.seed": [0, 0, 0, 1]}, "row 3 of the batch has a"),
        *(
            ("ordered", {"num_envs": 2, "rows.structure": rows}, "row 1 of the batch has a diff")
            for rows in ([0, 1], [0, 2], [3, 0], [4, 0])
        ),
        ("variable", {"num_envs": 2}, "'words' is of variable length"),
        ("reserved", {"num_envs": 2}, "'step_type' of an environment has a name reserved"),
        ("named", {"num_envs": 2}, "'step_type' of an environment has a name reserved"),
        ("masked", {"num_envs": 2}, "'step_mask' of an environment has a name reserved"),
        ("race", {"num_envs": 2}, "a batch can contain only single-agent environments"),
        ("two unasked", {"num_envs": 3}, "3"),
        ("nothing", {"num_envs": 2}, "'nothing'"),
    ],
)
def test_batches_that_cannot_be_made_are_refused_in_the_same_words(
    spread: Server, single: Server, environment: str, settings: dict[str, Any], text: str
) -> None:
    texts = []
    for server in (single, spread):
        with pytest.raises(DmEnvRpcError, match=text) as caught:
            make(server.address, {"environment": environment, **settings})
        texts.append((caught.value.code, caught.value.message))
    assert texts[0] == texts[1]


def pids_of(values: Mapping[str, Any]) -> list[int]:
    found: list[int] = values["pid"].tolist()
    return found


DO_NOTHING = {"do": np.zeros(ROWS, np.int32)}


def test_the_rows_of_any_client_are_in_all_processes(spread: Server) -> None:
    with make(spread.address, {"environment": "where", "num_envs": ROWS}) as env:
        pids = pids_of(begun(env))
        assert sorted(map(pids.count, set(pids))) == [2, 3]
        assert set(pids) == set(processes_of(spread))
        assert pids == sorted(pids, key=pids.index), "rows of a process are next to each other"
        stats = spread.stats()
        assert (stats.streams, stats.worlds, stats.agents) == (1, 1, 1)
    with make(spread.address, {"environment": "where", "num_envs": 1}) as env:
        assert len(pids_of(begun(env))) == 1


def test_rows_step_at_the_same_time(spread: Server, tmp_path: Path) -> None:
    settings = {"environment": "meeting", "folder": str(tmp_path), "rows.index": [0, 1]}
    with make(spread.address, {"num_envs": 2, **settings}) as env:
        env.reset()
        assert stepped(env, push(0.5, 0.25))["reward"].tolist() == [0.5, 0.25]


@pytest.mark.parametrize("environment", ["two", "two unasked"])
def test_what_is_a_batch_by_itself_is_in_one_process(spread: Server, environment: str) -> None:
    for _ in range(2):
        with make(spread.address, {"environment": environment, "num_envs": 2}) as env:
            env.reset()
            assert env.step({"action": np.zeros(2, int)}).reward.tolist() == [1.0, 1.0]
            assert batches.ROW_ERRORS not in env.observation_spec()


def test_a_step_that_fails_as_a_whole_leaves_the_world_of_use(spread: Server) -> None:
    exits = {"do": np.array([hosted.RAISE, 0, 0, 0, 0], np.int32)}
    with connect(spread.address) as connection:
        name = create_world(connection, {"environment": "exits", "num_envs": ROWS})
        with connect(spread.address) as other:
            env = join_world(other, name)
            pids = pids_of(begun(env))
            with pytest.raises(ConnectionLostError):
                env.step(exits)
        assert settles(lambda: spread.agent_count == 0)
        with join_world(connection, name) as env:
            first = begun(env)
            assert (first[batches.STEP_TYPE].tolist(), pids_of(first)) == ([0] * ROWS, pids)
            assert stepped(env, DO_NOTHING)[batches.STEP_TYPE].tolist() == [1] * ROWS
            # An answer that nobody has taken would be that to another request.
            assert pids_of(begun(env, {"doubled": 1})) == [2 * pid for pid in pids]
        destroy_world(connection, name)


@pytest.mark.parametrize(
    ("settings", "made"),
    [
        ({"environment": "closing", "num_envs": 4}, 4),
        # In each process, and in the one that has the world.
        ({"environment": "closing two", "num_envs": 2}, 3),
    ],
)
def test_environments_are_closed_with_their_batch(
    spread: Server, tmp_path: Path, settings: dict[str, Any], made: int
) -> None:
    with make(spread.address, {**settings, "folder": str(tmp_path)}) as env:
        env.reset()
        assert len(list(tmp_path.glob("*.open"))) == (4 if made == 4 else 1)
    assert len(hosted.closed(tmp_path)) == made


def test_nothing_is_left_of_batches(spread: Server) -> None:
    def play() -> None:
        with make(spread.address, {"environment": "where", "num_envs": ROWS}) as env:
            env.reset()

    play()
    assert settles(lambda: spread.stats().streams == 0)
    before = descriptor_count()
    for _ in range(10):
        play()
    assert settles(lambda: descriptor_count() <= before)


@pytest.mark.parametrize(
    ("request_kind", "lost"), [("reset", -1), ("settings", -1), ("property", -1), ("step", 0)]
)
def test_the_next_request_makes_lost_rows_anew(
    spread: Server, request_kind: str, lost: int
) -> None:
    with make(spread.address, {"environment": "where", "num_envs": ROWS}) as env:
        pids = pids_of(begun(env))
        os.kill(pids[lost], signal.SIGKILL)
        failed = stepped(env, DO_NOTHING)
        errors = json.loads(failed[batches.ROW_ERRORS])
        assert set(errors) == ({"2", "3", "4"} if lost else {"0", "1"})
        assert all("the process of this row has ended" in text for text in errors.values())
        assert pids_of(failed) == pids, "rows that failed have their last values"
        if request_kind == "reset":
            found = pids_of(begun(env))
        elif request_kind == "settings":
            found = pids_of(begun(env, {"rows.doubled": [0] * ROWS}))
        else:
            if request_kind == "property":
                assert PropertiesExtension(env.connection)[batches.WORLD_NUM_ENVS] == ROWS
            found = pids_of(stepped(env, DO_NOTHING))
        kept, new = (slice(2), slice(2, None)) if lost else (slice(2, None), slice(2))
        assert found[kept] == pids[kept]
        assert set(found[new]) & set(pids) == set()
        assert stepped(env, DO_NOTHING)[batches.STEP_TYPE].tolist() == [1] * ROWS
        assert "was ended by SIGKILL" in str(spread.errors[-1])


def test_a_world_whose_rows_cannot_be_made_anew_ends(spread: Server, tmp_path: Path) -> None:
    path = tmp_path / "made"
    settings = {"environment": "once", "num_envs": ROWS, "path": str(path)}
    with connect(spread.address) as connection:
        name = create_world(connection, settings)
        env = join_world(connection, name)
        path.touch()
        os.kill(pids_of(begun(env))[-1], signal.SIGKILL)
        stepped(env, DO_NOTHING)
        with pytest.raises(ConnectionLostError, match="rows could not be recreated") as caught:
            env.step(DO_NOTHING)
        assert caught.value.code == "UNAVAILABLE"
    assert str(spread.errors[-1]) == "no second engine"
    with connect(spread.address) as connection:
        assert settles(lambda: spread.agent_count == 0)
        destroy_world(connection, name)


@pytest.mark.parametrize(
    ("kind", "mode"), [("unsent", "stacked"), ("key", "stacked"), ("key", "own")]
)
def test_an_info_that_cannot_be_sent_or_read_is_the_error_of_its_row(
    spread: Server, kind: str, mode: str
) -> None:
    settings = {"environment": "unread", "num_envs": ROWS, "rows.index": list(range(ROWS))}
    with make(spread.address, {**settings, "kind": kind}) as env:
        env.reset({"infos": mode})
        for action in range(6):
            values = stepped(env, {"action": np.full(ROWS, action)})
            failed = {"1"} if action % 2 and mode == "stacked" else set()
            assert set(json.loads(values[batches.ROW_ERRORS] or "{}")) == failed
            # The infos of all other rows, also of those in the other process, are of this step.
            own, _, _ = extras_of_rows(str(values["gymnasium"]), ROWS)
            if mode == "stacked":
                expected = [0 if str(row) in failed else action for row in range(ROWS)]
                assert own["heard"].tolist() == expected


@pytest.mark.parametrize("last", [4, 9])
def test_the_description_and_the_frames_are_of_all_rows(
    spread: Server, single: Server, last: int
) -> None:
    seen = []
    for server in (single, spread):
        settings = [{"environment": "framed", "index": index} for index in (0, 1, 2, 3, last)]
        with RemoteVectorEnv(server.address, ROWS, settings, render_mode="rgb_array") as envs:
            envs.reset()
            seen.append((envs.metadata, tuple(envs.render() or ())))
    assert same(*seen)
    assert [frame[0, 0, 0] for frame in seen[1][1]] == [0, 1, 2, 3, last]


@pytest.mark.parametrize("has_memfd", [True, False])
def test_arrays_that_two_processes_share(has_memfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_memfd:  # As on macOS.
        monkeypatch.delattr(os, "memfd_create", raising=False)
    forms: list[Form] = [
        (np.dtype(np.uint8), (3,)),
        (np.dtype(object), (2,)),
        (np.dtype(np.float64), (2, 3)),
        (np.dtype(np.int16), (0, 4)),
        (np.dtype(np.bool_), ()),
    ]
    here = SharedArrays(forms)
    with here.handed_over() as descriptor:
        there = SharedArrays(forms, os.dup(descriptor))
    with there.handed_over():
        pass
    for number, (dtype, shape) in enumerate(forms):
        mine, others = here.arrays[number], there.arrays[number]
        if dtype.kind == "O":
            assert (mine, others) == (None, None)
            continue
        assert mine is not None
        assert others is not None
        assert (mine.dtype, mine.shape) == (others.dtype, others.shape) == (dtype, shape)
        values: npt.NDArray[Any] = np.arange(mine.size).reshape(shape).astype(dtype)
        mine[...] = values
        np.testing.assert_array_equal(others, values)
