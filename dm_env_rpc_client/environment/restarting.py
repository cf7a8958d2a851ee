"""The state of an environment that has lost its server or connection; this module does no I/O.

If the environment has a `Restart`, a lost step ends its sequence: the TimeStep is LAST, with
discount 1, as after INTERRUPTED. The next call relaunches the server if it was launched for the
environment, connects again, creates the world and joins it. The first TimeStep after the restart
is FIRST.
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
    """The number of attempts to restart a lost environment, and the pauses between them.

    The first attempt after a loss is made at once. The count starts over when the environment has
    answered a step that is not the first of its sequence. A server that always ends immediately
    therefore uses up the attempts, whereas a server that ends occasionally has all attempts after
    each loss.

    Args:
      attempts: the maximum number of consecutive unsuccessful attempts.
      backoff: seconds before the second attempt. Each further pause is twice as long; every pause
        is shortened by up to half, at random, so that many environments do not start together.
      max_backoff: the longest pause in seconds.

    Raises:
      SpecError: a number has a wrong type or is not positive.
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
        """Return the number of seconds to wait before the next attempt.

        Args:
          used: the number of attempts made so far.
        """
        if not used:
            return 0.0
        # The exponent is capped, since 2.0 ** 1024 overflows.
        longest = min(self.max_backoff, self.backoff * 2.0 ** min(used - 1, 64))
        # Jitter: many environments that lost one server do not all return at once.
        return longest * random.uniform(0.5, 1.0)


def restart_of(restart: Restart | bool | None) -> Restart | None:
    """Return the argument `restart`, with True replaced by `Restart()` and False by None.

    Raises:
      SpecError: `restart` is anything else.
    """
    if isinstance(restart, bool):
        return Restart() if restart else None
    hint = "a Restart, True for Restart()"
    none = "None or False for no restarts"
    return arguments.instance("restart", restart, Restart, hint, none=none)


class Supervision:
    """A record of the loss of an environment and of the attempts to restart it.

    Args:
      restart: the number of attempts and the pauses between them.

    Attributes:
      count: the number of restarts.
      due: the error that lost the environment; None if it is not lost.
      interruption: the error that lost the last step; None if the step was answered.
      specs: the specs in force at the loss, by kind.
      is_joining: whether callbacks of a restart are using the environment.
      on_loss: called at the loss, before the connection is closed.
      latest: the TimeStep that the caller has got last; None if no sequence is running. Within a
        call, the latest TimeStep that the call has read.
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
        self.latest: dm_env.TimeStep | None = None
        self._before: dm_env.TimeStep | None = None

    def saw(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        """Record a TimeStep that the caller gets, and return it."""
        self.latest = timestep
        self.interruption = None
        # Only a MID or LAST step proves that the environment works: some crash in their first step.
        if not timestep.first():
            self._used = 0
            self._error = None
        return timestep

    def begin(self) -> None:
        """Record that a call begins, whose caller has got `latest`."""
        self._before = self.latest

    def undo(self) -> None:
        """Forget the TimeSteps that an interrupted call has read, since its caller got none."""
        self.latest = self._before

    def unseen(self, interpret: Callable[[Any], dm_env.TimeStep], answer: Any) -> dm_env.TimeStep:
        """Interpret an answer whose TimeStep `saw` records when a caller gets it."""
        latest = self.latest
        try:
            return interpret(answer)
        finally:
            self.latest = latest

    def lose(self, error: DmEnvRpcClientError, address: str, specs: Mapping[str, Any]) -> None:
        """Mark the environment as lost."""
        if self.due is None:
            _log.warning("lost the environment at %s, which is restarted: %s", address, error)
            self.due = error
            # Only at the first loss: a failed restart may have adopted other specs.
            self.specs = specs
            self._add(error)
            if self.on_loss is not None:
                self.on_loss()

    def end_sequence(self) -> None:
        """After the server has answered a reset, record that no sequence is running."""
        self.latest = None

    def lost_step(self, reward_spec: Any, discount_spec: Any) -> dm_env.TimeStep | None:
        """Return the TimeStep that replaces a lost step, or None if no sequence was running.

        Args:
          reward_spec: the server's spec of the reward; None if it has none.
          discount_spec: the server's spec of the discount; None if it has none.
        """
        # The step would have begun a sequence, so there is none to interrupt.
        if self.latest is None or self.latest.last():
            return None
        reward = 0.0 if reward_spec is None else _filled(reward_spec, 0)
        discount = 1.0 if discount_spec is None else _filled(discount_spec, 1)
        # Copied: the former TimeStep is the caller's, whose changes must not appear in this one.
        observation = copy.deepcopy(self.latest.observation)
        self.latest = dm_env.TimeStep(dm_env.StepType.LAST, reward, discount, observation)
        self.interruption = self.due
        return self.latest

    def next_pause(self) -> float:
        """Count the next attempt, and return the number of seconds to wait before it.

        Raises:
          DmEnvRpcClientError: no attempts are left; this is the error of the last attempt, with
            earlier errors as its causes.
        """
        if self._used >= self._restart.attempts:
            assert self._error is not None
            _log.warning("gave up after %d attempts to restart: %s", self._used, self._error)
            raise self._error
        pause = self._restart.pause(self._used)
        self._used += 1
        return pause

    def failed(self, error: DmEnvRpcClientError) -> None:
        """Record a failed attempt to restart an environment."""
        _log.warning(
            "attempt %d of %d to restart failed: %s", self._used, self._restart.attempts, error
        )
        self._add(error)

    def succeeded(self, address: str) -> None:
        """Record that the environment at `address` was restarted and joined."""
        self.count += 1
        loss, self.due = self.due, None
        # The next step begins a sequence.
        self.latest = None
        _log.info("restarted the environment at %s, attempt %d", address, self._used)
        # Last, since a filter may turn it into an error. With the number, since Python shows equal
        # texts only once.
        warnings.warn(
            f"the environment at {address} was lost and restarted (restart {self.count}); the "
            f"running sequence has ended: {loss}",
            RestartWarning,
            stacklevel=3,
        )

    def _add(self, error: DmEnvRpcClientError) -> None:
        if self._error is not None:
            _chain(error, self._error)
        self._error = error

    def check_specs(self, specs: Mapping[str, Any]) -> None:
        """Raise SpecError if `specs` differ from those before the restart."""
        for kind, before in self.specs.items():
            if specs[kind] != before:
                raise SpecError(
                    f"the restarted environment has a different {kind}: "
                    f"{difference(before, specs[kind])}. A restart repeats the settings for "
                    "creating and joining the world, but not those for resets"
                )


def difference(expected: Any, found: Any) -> str:
    """Describe the difference between two specs, or the first difference between two mappings."""
    if not isinstance(expected, Mapping) or not isinstance(found, Mapping):
        return f"{found} instead of {expected}"
    name = next(name for name in (*expected, *found) if expected.get(name) != found.get(name))
    return f"{name!r} is {found.get(name)} instead of {expected.get(name)}"


def _filled(spec: Any, value: int) -> Any:
    return np.full(spec.shape, value, spec.dtype)[()]


def _chain(error: BaseException, earlier: BaseException) -> None:
    """Append an earlier error to the causes of an error."""
    seen = {id(earlier)}
    # Servers repeat errors: a cycle of causes would hang tracebacks.
    while error.__cause__ is not None and id(error) not in seen:
        seen.add(id(error))
        error = error.__cause__
    if id(error) not in seen:
        error.__cause__ = earlier
