"""Row 55: values that fail wherever several environments answer together."""

from __future__ import annotations

import abc
import collections
import contextlib
import json
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from dm_env_rpc_client import (
    Connection,
    ConnectionClosedError,
    ConnectionLostError,
    DmEnvAdaptor,
    DmEnvRpcClientError,
    EnvironmentsFailedError,
    connect,
    create_world,
    join_world,
)
from dm_env_rpc_client.adaptors.gymnasium.info_observation import extras_of_rows, unstacked
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.distributed import Rollouts
from dm_env_rpc_client.errors import AgentsFailedError
from dm_env_rpc_client.server import serve
from tests.distributed import failing
from tests.reliability.processes.failing_values import (
    ERRORS,
    PLACES,
    ROWS,
    Answer,
    Told,
    Trap,
)
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support.alarms import Alarm
from tests.support.scripted import settles

TRANSPORTS = ["http2"]

pytestmark = [
    pytest.mark.row(55),
    # Python drops an interrupt that arrives in the callback of a weak reference.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Infos: TypeAlias = Sequence[Mapping[Any, Any]]
Said: TypeAlias = tuple[npt.NDArray[Any], npt.NDArray[Any], Infos]
"""The observations [N, 4], the rewards [N] and the infos of a step."""

FAILURES: tuple[type[BaseException], ...] = (DmEnvRpcClientError, *ERRORS)

LOST = (ConnectionLostError, ConnectionClosedError, AgentsFailedError)

CALLER, ALARM = "given", "interrupted"
"""Further places: an action of the caller, and the caller itself."""


class Way(abc.ABC):
    """A way to step several environments together.

    Args:
      address: of a server.
    """

    keeps_lives = True

    def __init__(self, address: str):
        self.address = address

    @abc.abstractmethod
    def open(self) -> npt.NDArray[Any]:
        """Begins sequences, on new connections, and returns the first observations."""

    @abc.abstractmethod
    def step(self, actions: Any) -> tuple[Said, set[int]]:
        """Takes a step, and returns what was said, and the rows that have failed."""

    @abc.abstractmethod
    def close(self) -> None: ...


class Vector(Way):
    """A vector environment."""

    num_batches: int | None = None
    _envs: RemoteVectorEnv

    def open(self) -> npt.NDArray[Any]:
        settings = [{"index": row} for row in range(ROWS)]
        self._envs = RemoteVectorEnv(self.address, ROWS, settings, num_batches=self.num_batches)
        observations: npt.NDArray[Any] = self._envs.reset()[0]
        return observations

    def step(self, actions: Any) -> tuple[Said, set[int]]:
        observations, rewards, _, _, infos = self._envs.step(actions)
        return (observations, rewards, [own.info for own in unstacked(infos, ROWS)]), set()

    def close(self) -> None:
        self._envs.close()


class Streams(Vector):
    """A vector environment in which each environment has a stream."""

    num_batches = 0


class TwoBatches(Vector):
    """A vector environment of two batches."""

    num_batches = 2


class Joined(Way):
    """A batch that stays when a client has lost its connection, and is joined again."""

    def __init__(self, address: str):
        super().__init__(address)
        self._control: Connection | None = None
        self._name = ""
        self._connection: Connection | None = None

    def open(self) -> npt.NDArray[Any]:
        if self._control is None:
            self._control = connect(self.address)
            settings = {"num_envs": ROWS, "rows.index": np.arange(ROWS)}
            self._name = create_world(self._control, settings)
        self._connection = connect(self.address)
        assert settles(self._join)
        self._env.reset({"infos": "stacked"})
        observations: npt.NDArray[Any] = self._env.reset().observation["observation"]
        return observations

    def _join(self) -> bool:
        # The server may not have noticed yet that the former client is gone.
        assert self._connection is not None
        try:
            self._env: DmEnvAdaptor = join_world(self._connection, self._name)
        except DmEnvRpcClientError:
            return False
        return True

    def step(self, actions: Any) -> tuple[Said, set[int]]:
        timestep = self._env.step({"action": actions})
        values = timestep.observation
        failed = {int(row) for row in json.loads(str(values["row_errors"]) or "{}")}
        text = str(values["gymnasium"])
        stacked = extras_of_rows(text, ROWS)[0] if text else {}
        infos = [own.info for own in unstacked(stacked, ROWS)]
        return (values["observation"], timestep.reward, infos), failed

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def end(self) -> None:
        self.close()
        if self._control is not None:
            self._control.close()


class Agents(Way):
    """The agents of a game."""

    def open(self) -> npt.NDArray[Any]:
        from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv

        self._env = RemoteParallelEnv(self.address)
        return self._rows(self._env.reset()[0])

    def step(self, actions: Any) -> tuple[Said, set[int]]:
        observations, rewards, _, _, infos = self._env.step(
            {str(row): action for row, action in enumerate(actions)}
        )
        said = self._rows(observations), self._rows(rewards)
        return (*said, [infos[str(row)] for row in range(ROWS)]), set()

    def _rows(self, values: Mapping[Any, Any]) -> npt.NDArray[Any]:
        return np.array([values[str(row)] for row in range(ROWS)])

    def close(self) -> None:
        self._env.close()


class Rolled(Way):
    """Rollouts, whose policy takes the actions as its weights.

    Args:
      address: of a server.
      begin: makes them, from the address.
      keeps_lives: whether an environment that failed goes on; otherwise another takes its place.
    """

    def __init__(self, address: str, begin: Callable[[str], Rollouts], keeps_lives: bool = True):
        super().__init__(address)
        self._begin = begin
        self.keeps_lives = keeps_lives

    def open(self) -> npt.NDArray[Any]:
        self._rollouts = self._begin(self.address)
        return failing.taken(self._rollouts, failing.BEGIN)[0]

    def step(self, actions: Any) -> tuple[Said, set[int]]:
        return failing.taken(self._rollouts, actions), set()

    def close(self) -> None:
        self._rollouts.close()


class Model:
    """Takes steps, some of which fail, and checks that every answer is that to its step.

    Attributes:
      steps: the steps taken, with those that failed.
      failures: how often a step failed, by the place and the error that it was told.
      wrong: the answers that were those to other steps.
    """

    def __init__(self, way: Way, seed: int, errors: Sequence[type[BaseException]] = ()):
        self._way = way
        self._errors = (*FAILURES, *errors)
        self._random = random.Random(seed)
        self._ticket = 0
        self._last: list[Answer] = []
        self._sent = 0
        self._seconds = 1e-3
        self.steps = 0
        self.answers = 0
        self.failures: collections.Counter[tuple[str, int]] = collections.Counter()
        self.wrong: list[Any] = []

    def open(self) -> None:
        # An interrupt may have left anything.
        first = self._way.open()
        self._last = [Answer(*map(int, row)) for row in first]
        self._sent = 0
        self._expect(
            [(answer.row, answer.ticket) for answer in self._last], [(r, -1) for r in range(ROWS)]
        )

    def choice(self, places: Sequence[tuple[str, int]]) -> tuple[str, int]:
        """One of the given places and errors."""
        return self._random.choice(places)

    def take(self, place: str, kind: int) -> None:
        """Takes a step in which a row fails."""
        self.steps += 1
        row = self._random.randrange(ROWS)
        code = 0 if place in (CALLER, ALARM) else PLACES.index(place) * len(ERRORS) + kind
        tickets = [self._ticket + each for each in range(ROWS)]
        self._ticket += ROWS
        actions: Any = np.array([[ticket, 0] for ticket in tickets])
        actions[row, 1] = code
        if place == CALLER:
            actions = [*actions]
            actions[row] = Trap("array", kind)
        alarm = (
            Alarm(self._random.uniform(1e-5, 1.2 * self._seconds))
            if place == ALARM
            else contextlib.nullcontext()
        )
        self._sent += 1
        is_lost = False
        began = time.perf_counter()
        try:
            with alarm:
                said, failed = self._way.step(actions)
        except EnvironmentsFailedError as error:
            is_lost = any(isinstance(each, LOST) for each in error.failures.values())
        except self._errors as error:
            is_lost = isinstance(error, (*LOST, KeyboardInterrupt)) and place != CALLER
        else:
            # The time of a usual step.
            self._seconds = 0.9 * self._seconds + 0.1 * (time.perf_counter() - began)
            self._check(tickets, said, failed)
            if not failed:
                return
        self.failures[place, kind] += 1
        if is_lost:
            self._way.close()
            self.open()

    def _check(self, tickets: Sequence[int], said: Said, failed: set[int]) -> None:
        observations, rewards, infos = said
        for row in set(range(ROWS)) - failed:
            self.answers += 1
            answer, last = Answer(*map(int, observations[row])), self._last[row]
            if answer.life != last.life and not self._way.keeps_lives:
                last = Answer(row, answer.life, 0, -1)
            is_next = last.step < answer.step <= last.step + self._sent
            self._expect((answer.row, answer.ticket, answer.life), (row, tickets[row], last.life))
            self._expect((is_next, rewards[row]), (True, tickets[row]))
            told = {name: infos[row].get(name) for name in Answer._fields}
            self._expect(told, answer._asdict())
        if not failed:
            self._last = [Answer(*map(int, row)) for row in observations]
            self._sent = 0

    def _expect(self, found: Any, expected: Any) -> None:
        if found != expected:
            self.wrong.append((self.steps, found, expected))


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """Nothing is logged: tens of thousands of errors are expected."""
    logger = logging.getLogger("dm_env_rpc_client")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(before)


HERE = ("raised", "converted", "copied", "checked", "sent", "stacked", CALLER, ALARM)
OF_INFOS = ("copied", "sent", "stacked")
ONLY_CHILDREN = ("pickled", "unpickled")

WAYS: Mapping[str, tuple[Callable[[str], Way], int | None]] = {
    "streams": (Streams, None),
    "streams of children": (Streams, 2),
    "rows": (Vector, None),
    "two batches": (TwoBatches, None),
    "children": (Vector, 2),
    "joined rows": (Joined, None),
    "joined children": (Joined, 2),
    "players": (Agents, None),
    "local rollouts": (lambda at: Rolled(at, lambda _: failing.local(failing.told)), None),
    "rollouts": (lambda at: Rolled(at, lambda at: failing.local(failing.of_each(at))), None),
    "rollouts of batches": (
        lambda at: Rolled(at, lambda at: failing.local(failing.of_batches(at))), None,
    ),
}  # fmt: skip


def goals(name: str, count: int) -> dict[tuple[str, int], int]:
    """How often each place has to fail, with each error."""
    # Agents of a game stack nothing, and nobody wants the infos of rollouts. Few ways have places
    # between processes.
    left_out = ("stacked",) if name == "players" else OF_INFOS if "rollouts" in name else ()
    places = {place: count for place in HERE if place not in left_out}
    if name in ("children", "joined children"):
        places.update(dict.fromkeys(ONLY_CHILDREN, count * (len(WAYS) // 2)))
    found = {(place, kind): most for place, most in places.items() for kind in range(len(ERRORS))}
    # An alarm is always a KeyboardInterrupt.
    del found[ALARM, 0]
    return found


@pytest.mark.parametrize("name", WAYS)
@counts(2, 650)
def test_row_55_no_answer_is_that_to_another_step(name: str, count: int, seen: Seen) -> None:
    kind, processes = WAYS[name]
    environment: Any = Told
    if kind is Agents:
        pytest.importorskip("pettingzoo")
        from tests.reliability.processes.failing_games import ToldGame

        environment = ToldGame
    wanted = goals(name, count)
    # Worlds of connections that failures have ended stay for a time: too many for the limit.
    with serve(environment, processes=processes, idle_world_seconds=1.0) as server:
        run(kind(server.address), wanted, seen)


def run(
    way: Way,
    wanted: Mapping[tuple[str, int], int],
    seen: Seen,
    errors: Sequence[type[BaseException]] = (),
) -> None:
    """Steps until each place has failed as often as it has to."""
    model = Model(way, len(wanted), errors)
    model.open()
    try:
        while left := [each for each, most in wanted.items() if model.failures[each] < most]:
            model.take(*model.choice(left))
            model.take("", 0)
    finally:
        way.close()
        if isinstance(way, Joined):
            way.end()
    by_place = collections.Counter[str]()
    for (place, error), failed in model.failures.items():
        by_place[f"{place}_{ERRORS[error].__name__}"] += failed
    seen(steps=model.steps, answers=model.answers, wrong=len(model.wrong), **by_place)
    assert model.wrong == []
    # Where nothing was told to fail, nothing has.
    assert set(model.failures) == set(wanted)
