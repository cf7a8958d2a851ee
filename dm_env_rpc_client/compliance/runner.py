"""Runs checks against a server."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from dm_env_rpc_client.compliance.check import Check
from dm_env_rpc_client.compliance.options import Options
from dm_env_rpc_client.compliance.outcome import NotOfferedError, Outcome, Result, ViolationError
from dm_env_rpc_client.compliance.table import CHECKS
from dm_env_rpc_client.compliance.trial import Trial
from dm_env_rpc_client.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    ProtocolError,
)

__all__ = ["run", "run_check"]

_DEFAULTS = Options()


def run_check(check: Check, address: str, options: Options = _DEFAULTS) -> Result:
    """Runs one check with its own connections and worlds, and cleans up after it.

    Args:
      check: the check.
      address: the server, such as "localhost:50051".
      options: how to use it.

    Returns:
      Its result. If the server cannot be reached, that is a failure.

    Raises:
      SpecError: an action of the policy does not conform to its spec, or the server is on
        another machine and `insecure` is False.
    """
    started = time.monotonic()
    outcome, reason, sent, received, expected = Outcome.PASSED, "", "", "", ""
    try:
        with Trial(address, options) as trial:
            check.function(trial)
    except NotOfferedError as error:
        outcome, reason = Outcome.SKIPPED, str(error)
    except ViolationError as violation:
        outcome, sent, received = Outcome.FAILED, violation.sent, violation.received
        expected = violation.expected
    except (ConnectionLostError, DeadlineExceededError, ProtocolError) as error:
        outcome, received, expected = Outcome.FAILED, str(error), "a connection"
    return Result(
        check.name,
        outcome,
        check.document,
        check.heading,
        check.clause,
        reason,
        sent,
        received,
        expected,
        time.monotonic() - started,
    )


def run(
    address: str, options: Options = _DEFAULTS, checks: Iterable[Check] = CHECKS
) -> Iterator[Result]:
    """Runs checks against a server, one after the other.

    Args:
      address: the server, such as "localhost:50051".
      options: how to use it.
      checks: the checks to run; all by default.

    Yields:
      The result of each check, as soon as it has ended.
    """
    for check in checks:
        yield run_check(check, address, options)
