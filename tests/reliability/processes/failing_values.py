"""Environments whose values fail where they are told to, and that say which step they answer.

Light, because worker processes import it.
"""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces

ROWS = 4


class Answer(NamedTuple):
    """What an observation says, and an info likewise.

    Attributes:
      row: the number of the environment.
      life: a number of each environment that was made.
      step: the number of the step in this life, from 1.
      ticket: the action, which is that of no other step.
    """

    row: int
    life: int
    step: int
    ticket: int


class TrapError(Exception):
    """The error of a value that fails."""


ERRORS: tuple[type[BaseException], ...] = (TrapError, KeyboardInterrupt)


def spring(kind: int) -> NoReturn:
    """Raises an error, of `ERRORS`."""
    raise ERRORS[kind]


class Trap:
    """Fails in one of its methods.

    Args:
      method: the method; "load" is called by `pickle.loads`.
      kind: the error, of `ERRORS`.
    """

    def __init__(self, method: str, kind: int):
        self._method = method
        self._kind = kind

    def _enter(self, method: str) -> None:
        if method == self._method:
            spring(self._kind)

    def __reduce__(self) -> Any:
        self._enter("dump")
        return (
            (spring, (self._kind,))
            if self._method == "load"
            else (Trap, (self._method, self._kind))
        )

    def __array__(self, *_: Any, **__: Any) -> Any:
        self._enter("array")
        return np.zeros(2)

    def __repr__(self) -> str:
        self._enter("repr")
        return "trap"

    def __str__(self) -> str:
        self._enter("str")
        return "trap"

    def __float__(self) -> float:
        self._enter("float")
        return 0.0


PLACES = ("", "raised", "pickled", "unpickled", "converted", "copied", "checked", "sent", "stacked")
"""Where a value fails, by the number that an action names: nowhere; in the environment; while its
info is pickled, or unpickled; while its observation is converted; while its info is copied; while
its reward is checked; while its info is made a text; while infos are stacked."""

CODES = len(PLACES) * len(ERRORS)


def place_of(code: int) -> tuple[str, int]:
    """The place of a failure, and its error."""
    return PLACES[code // len(ERRORS)], code % len(ERRORS)


def spoil(code: int, observation: Any, reward: Any, info: dict[Any, Any]) -> tuple[Any, Any]:
    """Returns an observation and a reward, and changes their info, so that one of them fails.

    Args:
      code: `place_of` tells what fails.
      observation: the observation.
      reward: the reward.
      info: the info.
    """
    place, kind = place_of(code)
    if place == "raised":
        spring(kind)
    if place == "pickled":
        info[Trap("dump", kind)] = 1
    if place == "unpickled":
        info[Trap("load", kind)] = 1
    if place == "converted":
        return Trap("array", kind), reward
    if place == "copied":
        info["copied"] = Trap("repr", kind)
    if place == "checked":
        return observation, Trap("float", kind)
    if place == "sent":
        info[Trap("repr", kind)] = 1
    if place == "stacked":
        info["stacked"] = np.zeros(3)
        if kind:
            info[Trap("str", kind)] = 1
    return observation, reward


class Books:
    """Counts the steps of one environment."""

    def __init__(self, row: int):
        self._row = row
        self._life = secrets.randbits(40)
        self._step = 0

    def answer(self, ticket: int) -> Answer:
        """The answer to the next step, or to a reset if the ticket is -1."""
        self._step += ticket >= 0
        return Answer(self._row, self._life, self._step, ticket)


class Told(gymnasium.Env[Any, Any]):
    """Its actions are a ticket and where to fail; its infos say what its observations say.

    Args:
      index: the number of the environment.
    """

    observation_space = spaces.Box(-1, 1 << 41, (len(Answer._fields),), np.int64)
    action_space = spaces.Box(-1, 1 << 40, (2,), np.int64)

    def __init__(self, index: int = 0):
        self._books = Books(index)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._said(self._books.answer(-1))

    def step(self, action: Any) -> Any:
        ticket, code = map(int, action)
        answer = self._books.answer(ticket)
        observation, info = self._said(answer)
        return *spoil(code, observation, float(ticket), info), False, False, info

    def _said(self, answer: Answer) -> tuple[Any, dict[Any, Any]]:
        info: dict[Any, Any] = {**answer._asdict(), "stacked": np.zeros(2)}
        return np.array(answer, np.int64), info
