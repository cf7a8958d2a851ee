"""The state of an environment after the loss of its server or connection, without I/O.

With a `Restart`, a step that is lost ends its sequence: the TimeStep is LAST, with discount 1, as
after INTERRUPTED. The next call connects again, launches the server again if it was launched here,
creates the world and joins it; its first TimeStep is FIRST.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import random
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import dm_env
import numpy as np

from dm_env_rpc_client import arguments
from dm_env_rpc_client.errors import DmEnvRpcClientError, RestartWarning, SpecError

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Restart:
    """Number of attempts, and the pauses between them, to restart a lost environment.

    The first attempt after a loss is made at once. Attempts are counted until the environment has
    answered a step that is not the first of its sequence. So a server that ends again at once uses
    them up, and one that ends once in a while has all of them each time.

    Args:
      attempts: maximum number of consecutive unsuccessful attempts.
      backoff: seconds before the second attempt. Each further pause is twice as long; every pause
        is shortened by up to half, at random, so that many environments do not start together.
      max_backoff: the longest pause in seconds.

    Raises:
      SpecError: a number is of another type or not positive.
    """

    attempts: int = 5
    backoff: float = 0.5
    max_backoff: float = 30.0

    def __post_init__(self) -> None:
        attempts = arguments.count("attempts of a Restart", self.attempts)
        # The dataclass is frozen; NumPy integers become int here.
        object.__setattr__(self, "attempts", attempts)
        for name in ("backoff", "max_backoff"):
            seconds = arguments.seconds(f"{name} of a Restart", getattr(self, name))
            object.__setattr__(self, name, seconds)

    def pause(self, used: int) -> float:
        """Return the seconds to wait before the next attempt.

        Args:
          used: the number of attempts before it.
        """
        if not used:
            return 0.0
        # The exponent is capped, since 2.0 ** 1024 overflows.
        longest = min(self.max_backoff, self.backoff * 2.0 ** min(used - 1, 64))
        # Jitter: many environments that lost one server do not all return at once.
        return longest * random.uniform(0.5, 1.0)


def restart_of(restart: Restart | bool | None) -> Restart | None:
    """Return the `Restart` of the argument `restart`: True means `Restart()`, False means None.

    Raises:
      SpecError: it is something else.
    """
    if isinstance(restart, bool):
        return Restart() if restart else None
    hint = "a Restart, or True for Restart()"
    return arguments.instance("restart", restart, Restart, hint, none="None or False for never")


class Supervision:
    """Whether an environment is lost, and the attempts to start it again.

    Args:
      restart: how often.

    Attributes:
      count: how often it was started again.
      due: why it is lost; None if it is not.
      interruption: why the last step was lost; None if it was answered.
      specs: the specs that were in force when it was lost, by kind.
      is_joining: whether an attempt to restart is asking something of the environment.
      on_loss: called when it is lost, before its connection is closed.
    """

    def __init__(self, restart: Restart):
        self.count = 0
        self.due: DmEnvRpcClientError | None = None
        self.interruption: DmEnvRpcClientError | None = None
        self.is_joining = False
        self.specs: Mapping[str, Any] = {}
        self.on_loss: Callable[[], None] | None = None
        self._restart = restart
        self._used = 0
        self._error: DmEnvRpcClientError | None = None
        self._latest: dm_env.TimeStep | None = None

    def saw(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        """Record an answered TimeStep, and return it."""
        self._latest = timestep
        self.interruption = None
        # Only a MID or LAST step proves that the environment works: some crash in their first step.
        if not timestep.first():
            self._used = 0
            self._error = None
        return timestep

    def lose(self, error: DmEnvRpcClientError, address: str, specs: Mapping[str, Any]) -> None:
        """Mark the environment as lost."""
        if self.due is None:
            _log.warning("lost the environment at %s, which is restarted: %s", address, error)
            self.due = error
            # The first loss counts: a restart that fails may have adopted other specs.
            self.specs = specs
            self._add(error)
            if self.on_loss is not None:
                self.on_loss()

    def end_sequence(self) -> None:
        """Record that no sequence is running, after an answered reset."""
        self._latest = None

    def lost_step(self, reward_spec: Any, discount_spec: Any) -> dm_env.TimeStep | None:
        """Return the TimeStep of a step that was lost; None if no sequence was running.

        Args:
          reward_spec: the server's spec of the reward; None if it has none.
          discount_spec: the same for the discount.
        """
        # The step was to begin a sequence, so there is none to interrupt.
        if self._latest is None or self._latest.last():
            return None
        reward = 0.0 if reward_spec is None else _filled(reward_spec, 0)
        discount = 1.0 if discount_spec is None else _filled(discount_spec, 1)
        # The caller may have changed its TimeStep, and would change this one.
        observation = copy.deepcopy(self._latest.observation)
        self._latest = dm_env.TimeStep(dm_env.StepType.LAST, reward, discount, observation)
        self.interruption = self.due
        return self._latest

    def next_pause(self) -> float:
        """Return the seconds to wait before the next attempt, which this counts.

        Raises:
          DmEnvRpcClientError: there are no attempts left; what the last one failed with, caused by
            what the ones before failed with.
        """
        if self._used >= self._restart.attempts:
            assert self._error is not None
            _log.warning("gave up after %d attempts to restart: %s", self._used, self._error)
            raise self._error
        pause = self._restart.pause(self._used)
        self._used += 1
        return pause

    def failed(self, error: DmEnvRpcClientError) -> None:
        """Record a failed attempt."""
        _log.warning(
            "attempt %d of %d to restart failed: %s", self._used, self._restart.attempts, error
        )
        self._add(error)

    def succeeded(self, address: str) -> None:
        """Record that an environment was joined."""
        self.count += 1
        loss, self.due = self.due, None
        # The next step begins a sequence.
        self._latest = None
        _log.info("restarted the environment at %s, attempt %d", address, self._used)
        # At last: a filter may make an error of it. With the number, since Python shows equal
        # texts once.
        warnings.warn(
            f"the environment at {address} was lost and started again, for the {self.count}. time; "
            f"the sequence that was running has ended: {loss}",
            RestartWarning,
            stacklevel=3,
        )

    def _add(self, error: DmEnvRpcClientError) -> None:
        if self._error is not None:
            _chain(error, self._error)
        self._error = error

    def check_specs(self, specs: Mapping[str, Any]) -> None:
        """Raise SpecError if specs differ from the former ones."""
        for kind, before in self.specs.items():
            if specs[kind] != before:
                raise SpecError(
                    f"the environment has another {kind} since it was restarted: "
                    f"{difference(before, specs[kind])}. A restart sends the settings of the "
                    "creation and of joining, and none of a reset"
                )


def difference(expected: Any, found: Any) -> str:
    """Describe how specs differ: the specs, or the first difference in a mapping."""
    if not isinstance(expected, Mapping) or not isinstance(found, Mapping):
        return f"{found} instead of {expected}"
    name = next(name for name in (*expected, *found) if expected.get(name) != found.get(name))
    return f"{name!r} is {found.get(name)} instead of {expected.get(name)}"


def _filled(spec: Any, value: int) -> Any:
    return np.full(spec.shape, value, spec.dtype)[()]


def _chain(error: BaseException, earlier: BaseException) -> None:
    """Make an earlier error the cause of the first cause of another."""
    seen = {id(earlier)}
    # Servers repeat errors: a cycle of causes would hang tracebacks.
    while error.__cause__ is not None and id(error) not in seen:
        seen.add(id(error))
        error = error.__cause__
    if id(error) not in seen:
        error.__cause__ = earlier
