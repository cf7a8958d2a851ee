"""All ways, by name: how each plays an environment, and what it is expected to be told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gymnasium.vector import AutoresetMode

from dm_env_rpc_client.adaptors.gymnasium import GymnasiumEnv
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.recording import replay
from tests.travelling.environments import informing
from tests.travelling.environments.all import AGENTS, DM_ENV, GYMNASIUM
from tests.travelling.environments.habits import Habit
from tests.travelling.in_process import (
    ROWS,
    alone,
    by_place,
    by_row,
    in_same_step,
    in_vectors,
    sent,
    whole,
)
from tests.travelling.timed_in_process import Named, timed_alone, timed_in_rows
from tests.travelling.told import Call, Failed, Tale, Timed
from tests.travelling.ways.agents import agents_alone, play_parallel
from tests.travelling.ways.dm_env_clients import (
    play_async,
    play_batched,
    play_make,
    play_make_of_batch,
    read_episodes,
)
from tests.travelling.ways.gymnasium_clients import play_by_row, play_single, play_vector
from tests.travelling.ways.places import Places

Play = Callable[[Places, str, Sequence[Call]], list[Tale]]


class Way(NamedTuple):
    """A way of travelling."""

    play: Play
    expected: Callable[[Habit], list[Tale]]
    habits: Mapping[str, Habit]
    is_whole: bool = True
    """Whether it is in the gate; otherwise only in the full table."""


def cells(is_whole: bool) -> list[tuple[str, str]]:
    """Returns the ways and habits of all cells, those of the gate or the others."""
    return [
        (way, habit)
        for way, each in WAYS.items()
        if each.is_whole == is_whole
        for habit in each.habits
    ]


# What is expected.


def _single(habit: Habit) -> list[Tale]:
    return [sent(alone(habit, ROWS[-1]))]


def _vector(habit: Habit) -> list[Tale]:
    return in_vectors([sent(alone(habit, row)) for row in ROWS])


def _same_step(habit: Habit) -> list[Tale]:
    rows = [sent(alone(habit, row)) for row in ROWS]
    return in_same_step(in_vectors(rows), rows, habit.calls)


def _by_row(habit: Habit) -> list[Tale]:
    return by_row([sent(alone(habit, row)) for row in ROWS], habit.calls)


def _stacked(habit: Habit) -> list[Tale]:
    return [by_place(tale) for tale in whole(_vector(habit))]


def _timed(habit: Habit) -> list[Tale]:
    return [timed_alone(habit, ROWS[-1])]


def _timed_rows(habit: Habit) -> list[Tale]:
    return timed_in_rows([timed_alone(habit, row) for row in ROWS])


def _by_place(expected: Callable[[Habit], list[Tale]]) -> Callable[[Habit], list[Tale]]:
    return lambda habit: [by_place(tale) for tale in expected(habit)]


def _in_episodes(habit: Habit) -> list[Tale]:
    """What the episodes of a recording say: all TimeSteps, without the errors."""
    return [[event for event in tale if isinstance(event, Timed)] for tale in _timed(habit)]


def _adapted_tale(habit: Habit, row: int) -> Tale:
    """What an environment of dm_env tells behind the adaptor for Gymnasium, in this process."""
    adapted = habit._replace(make=lambda row: GymnasiumEnv(Named(habit.make(row))))
    return sent(alone(adapted, row, is_adapted=True))


def _adapted_single(habit: Habit) -> list[Tale]:
    return [_adapted_tale(habit, ROWS[-1])]


def _adapted_vector(habit: Habit) -> list[Tale]:
    return in_vectors([_adapted_tale(habit, row) for row in ROWS])


# How they are played.


def _settings(habit: str) -> Callable[[int], dict[str, Any]]:
    return lambda row: {"habit": habit, "row": row}


def _remote(place: str = "own", **options: Any) -> Play:
    return lambda places, habit, calls: play_single(
        getattr(places, place), habit, calls, habit in GYMNASIUM, **options
    )


def _rows(place: str = "own", **options: Any) -> Play:
    def play(places: Places, habit: str, calls: Sequence[Call]) -> list[Tale]:
        settings = {"habit": habit} if place == "vector" else _settings(habit)
        address = getattr(places, place)
        return play_vector(
            lambda: RemoteVectorEnv(address, len(ROWS), settings, **options),
            calls,
            habit in GYMNASIUM,
        )

    return play


def _infos_by_row(place: str = "own", **options: Any) -> Play:
    return lambda places, habit, calls: play_by_row(getattr(places, place), habit, calls, **options)


def _make(place: str = "own", **options: Any) -> Play:
    return lambda places, habit, calls: play_make(
        getattr(places, place), habit, calls, seeds=habit in GYMNASIUM, **options
    )


def _make_of_batch(places: Places, habit: str, calls: Sequence[Call]) -> list[Tale]:
    settings = {"habit": habit, "rows.row": list(ROWS)}
    return play_make_of_batch(places.own, settings, calls, seeds=habit in GYMNASIUM)


def _batched(**options: Any) -> Play:
    return lambda places, habit, calls: play_batched(
        places.own, habit, calls, seeds=habit in GYMNASIUM, **options
    )


def _async(places: Places, habit: str, calls: Sequence[Call]) -> list[Tale]:
    return play_async(places.own, habit, calls, habit in GYMNASIUM)


def _replayed(play: Callable[..., list[Tale]]) -> Play:
    """Records what is played, and plays the recording."""

    def both(places: Places, habit: str, calls: Sequence[Call]) -> list[Tale]:
        path = places.path()
        options: dict[str, Any] = {}
        if play is play_make:
            options = {"seeds": habit in GYMNASIUM}
        recorded = play(places.own, habit, calls, record=path, **options)
        if isinstance(recorded[0][0], Failed):
            return recorded
        with replay(path) as server:
            return play(server.address, habit, calls, **options)

    return both


def _episodes(places: Places, habit: str, calls: Sequence[Call]) -> list[Tale]:
    path = places.path()
    play_make(places.own, habit, calls, seeds=habit in GYMNASIUM, record=path)
    return [read_episodes(path)]


def _parallel(place: str = "own", **options: Any) -> Play:
    return lambda places, habit, calls: play_parallel(
        getattr(places, place), habit, calls, **options
    )


_UNSTACKED = (
    # What these return cannot be stacked at all, or is something else then.
    "a list for a Tuple of another length", "a masked reward", "returns four values",
    "returns an observation alone", "returns None",
    # Gymnasium cannot put these infos together.
    "integers of 2**63", "3 beside None", "arrays of different length", "one info for all",
)  # fmt: skip
IN_VECTORS = {name: habit for name, habit in GYMNASIUM.items() if name not in informing.OWN}
"""The environments of Gymnasium whose infos its vector environments put together."""

_STACKED = {name: habit for name, habit in IN_VECTORS.items() if name not in _UNSTACKED}

_WITHOUT_SECOND_RESET = {
    # The calls would be others.
    name: habit
    for name, habit in GYMNASIUM.items()
    if name != "raises in the next reset"
}
_UNTIL_THE_END = {
    name: habit
    for name, habit in _WITHOUT_SECOND_RESET.items()
    # Streams fail then, as of `streams`.
    if name != "what follows an end that did not fit"
}
IN_SAME_STEP = {
    name: habit
    for name, habit in _WITHOUT_SECOND_RESET.items()
    # Gymnasium itself has these keys then.
    if name in IN_VECTORS and name != "keys of vector environments"
}
"""The environments of Gymnasium that are played in the autoreset mode SAME_STEP."""

_WITH_MASKS = {
    # A reset with a mask has other options, in SyncVectorEnv as well.
    name: habit
    for name, habit in IN_VECTORS.items()
    if not name.startswith("tells")
}

# Clients of dm_env see no infos.
_OF_BOTH = {
    **{
        name: habit
        for name, habit in GYMNASIUM.items()
        if name not in informing.INFOS and name not in informing.OWN
    },
    **DM_ENV,
}


def _apart(habits: Mapping[str, Habit]) -> Mapping[str, Habit]:
    """Those of environments that may be in threads of their own, as slow ones on streams are."""
    return {name: habit for name, habit in habits.items() if name != "one info for all"}


WAYS: Mapping[str, Way] = {
    # Environments and clients of Gymnasium.
    "Remote-v0": Way(_remote(), _single, GYMNASIUM),
    "streams": Way(_rows(num_batches=0), _vector, _apart(IN_VECTORS)),
    "batch": Way(_rows(), _vector, IN_VECTORS),
    "infos by row": Way(_infos_by_row(), _by_row, _WITHOUT_SECOND_RESET),
    "batch, SAME_STEP": Way(
        _rows(autoreset_mode=AutoresetMode.SAME_STEP), _same_step, IN_SAME_STEP
    ),
    "served VectorEnv": Way(_rows("vector"), _stacked, _STACKED),
    "one file, Remote-v0": Way(_remote("one_file"), _by_place(_single), GYMNASIUM),
    "Remote-v0, replayed": Way(_replayed(play_single), _single, GYMNASIUM, False),
    "Remote-v0, grpc": Way(_remote("grpc", transport="grpc"), _single, GYMNASIUM, False),
    "Remote-v0, processes": Way(_remote("processes"), _single, GYMNASIUM, False),
    "batch, processes": Way(_rows("processes"), _vector, IN_VECTORS, False),
    "two batches": Way(_rows(num_batches=2), _vector, _apart(IN_VECTORS), False),
    "batch, DISABLED": Way(
        _rows(autoreset_mode=AutoresetMode.DISABLED), _vector, _WITH_MASKS, False
    ),
    "streams, DISABLED": Way(
        _rows(autoreset_mode=AutoresetMode.DISABLED, num_batches=0),
        _vector,
        _apart(_WITH_MASKS),
        False,
    ),
    "infos by row, streams": Way(
        _infos_by_row(num_batches=0), _by_row, _apart(_WITHOUT_SECOND_RESET), False
    ),
    "infos by row, two batches": Way(
        _infos_by_row(num_batches=2), _by_row, _apart(_WITHOUT_SECOND_RESET), False
    ),
    "infos by row, processes": Way(
        _infos_by_row("processes"), _by_row, _WITHOUT_SECOND_RESET, False
    ),
    "infos by row, replayed": Way(_replayed(play_by_row), _by_row, _WITHOUT_SECOND_RESET, False),
    "infos by row, one file": Way(
        _infos_by_row("one_file"), _by_place(_by_row), _UNTIL_THE_END, False
    ),
    "streams, SAME_STEP": Way(
        _rows(autoreset_mode=AutoresetMode.SAME_STEP, num_batches=0),
        _same_step,
        _apart(IN_SAME_STEP),
        False,
    ),
    # Clients of Gymnasium, environments of dm_env.
    "Remote-v0 of dm_env": Way(_remote(), _adapted_single, DM_ENV),
    "streams of dm_env": Way(_rows(num_batches=0), _adapted_vector, DM_ENV),
    "batch of dm_env": Way(_rows(), _adapted_vector, DM_ENV),
    # Clients of dm_env.
    "make": Way(_make(), _timed, _OF_BOTH),
    "make of a batch": Way(_make_of_batch, _timed_rows, _OF_BOTH),
    "one file, make": Way(_make("one_file"), _by_place(_timed), DM_ENV),
    "make, replayed": Way(_replayed(play_make), _timed, DM_ENV),
    "episodes of a recording": Way(_episodes, _in_episodes, DM_ENV),
    "BatchedEnvironment": Way(_batched(), _timed_rows, DM_ENV),
    "BatchedEnvironment, streams": Way(_batched(num_batches=0), _timed_rows, DM_ENV, False),
    "make_async": Way(_async, _timed, _OF_BOTH),
    "make, grpc": Way(_make("grpc", transport="grpc"), _timed, _OF_BOTH, False),
    "make, processes": Way(_make("processes"), _timed, DM_ENV, False),
    # PettingZoo.
    "RemoteParallelEnv": Way(_parallel(), agents_alone, AGENTS),
    "RemoteParallelEnv, grpc": Way(
        _parallel("grpc", transport="grpc"), agents_alone, AGENTS, False
    ),
    "RemoteParallelEnv, processes": Way(_parallel("processes"), agents_alone, AGENTS, False),
}
"""By name."""
