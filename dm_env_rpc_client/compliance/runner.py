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
    """Runs one check with connections and worlds of its own, and undoes what it did.

    Args:
      check: the check.
      address: the server, such as "localhost:50051".
      options: how to use it.

    Returns:
      What came of it. A server that cannot be reached is a failure.

    Raises:
      SpecError: the policy's actions do not conform to their specs; or plaintext to
        another machine without `insecure`.
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
      checks: which ones; all of them by default.

    Yields:
      The result of each, as soon as there is one.
    """
    for check in checks:
        yield run_check(check, address, options)
