"""Errors of requests and environments: the party at fault, the kept errors and the log.

Code that converts values of a request raises `RequestError`, or runs `in_request`. Every other
exception is the environment's, even a SpecError, which may be about a value of the environment.

Errors are kept and logged within bounds: an environment that fails in every step would otherwise
fill the memory and the log.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from google.rpc import code_pb2

from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.system.locks import make_lock


class RequestError(Exception):
    """A request is refused; the client receives code and text as an error Status.

    Args:
      code: a google.rpc.Code, such as `code_pb2.NOT_FOUND`.
      message: the problem, and what to do about it.
    """

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled between worker processes; the default would call the class with the text alone.
        return RequestError, (self.code, str(self))

    @classmethod
    def invalid(cls, message: str) -> RequestError:
        """Make the error for a request that is invalid in every state of the server.

        Args:
          message: as for the class.

        Returns:
          The error, with the code INVALID_ARGUMENT.
        """
        return cls(code_pb2.INVALID_ARGUMENT, message)

    @classmethod
    def not_now(cls, message: str) -> RequestError:
        """Make the error for a request that is invalid in the current state of the server.

        Args:
          message: as for the class.

        Returns:
          The error, with the code FAILED_PRECONDITION.
        """
        return cls(code_pb2.FAILED_PRECONDITION, message)


def refusal_of(error: BaseException) -> RequestError | None:
    """Return an exception if it is a refusal; None if it is a failure of the environment.

    Answers, counters and logs all use this one distinction.

    Args:
      error: raised by a request, or by a row's part of it.
    """
    return error if isinstance(error, RequestError) else None


@contextlib.contextmanager
def in_request() -> Iterator[None]:
    """Turn errors in the conversion of a client's values into RequestErrors.

    Yields:
      Nothing.

    Raises:
      RequestError: a value does not conform, or is no valid JSON.
    """
    try:
        yield
    except (SpecError, ProtocolError) as error:
        raise RequestError.invalid(str(error)) from error


def environments_own(error: Exception) -> RuntimeError:
    """Return an environment's error in a form that cannot be mistaken for an argument error.

    Args:
      error: a ValueError, the type that also reports an invalid setting or action.
    """
    return RuntimeError(f"{type(error).__name__}: {error}")


def environment_error(error: Exception, of: str = "specs") -> RuntimeError:
    """Return the error for a value of an environment that does not conform.

    Args:
      error: names the value and the problem.
      of: how the environment describes its values: "specs" or "space".
    """
    return RuntimeError(f"the environment violates its own {of}: {error}")


_log = logging.getLogger("dm_env_rpc_client.server")

Report: TypeAlias = Callable[[Exception, str], None]
"""A callback for the error of a row, or another error that fails no request, and its
description."""


def unreported(error: Exception, text: str) -> None:
    """Ignore the report: a `Report` without a server."""


KEPT_ERRORS = 100
"""Number of exceptions that are kept, the newest ones."""

_BURST = 20
"""Maximum number of lines logged at once; after them, one in `_SECONDS`."""

_SECONDS = 10.0


class Allowance:
    """A limit for log lines of one kind. Thread-safe."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._credit = float(_BURST)
        self._seen = time.monotonic()
        self._left_out = 0

    def log(
        self, log: logging.Logger, level: int, text: str, error: BaseException | None = None
    ) -> None:
        """Log a line, with the traceback of `error`, unless too many were logged recently."""
        if not log.isEnabledFor(level):
            return
        with self._lock:
            now = time.monotonic()
            # A token bucket: an environment that fails in every step must not fill the disk.
            self._credit = min(float(_BURST), self._credit + (now - self._seen) / _SECONDS)
            self._seen = now
            if self._credit < 1.0:
                self._left_out += 1
                return
            self._credit -= 1.0
            left_out, self._left_out = self._left_out, 0
        if left_out:
            text += f" ({left_out} more were not logged)"
        log.log(level, "%s", text, exc_info=error)


class ErrorLog:
    """Collected exceptions; any thread may add one.

    Attributes:
      count: the number of exceptions, including those no longer kept.
    """

    def __init__(self) -> None:
        self.count = 0
        self._kept: collections.deque[BaseException] = collections.deque(maxlen=KEPT_ERRORS)
        self._lock = make_lock()
        self._allowance = Allowance()

    @property
    def kept(self) -> list[BaseException]:
        """The last exceptions, oldest first."""
        # A copy: other threads may add while the caller iterates.
        with self._lock:
            return list(self._kept)

    def add(self, error: BaseException, text: str) -> None:
        """Keep an exception, and log it with its traceback unless too many were logged recently.

        Args:
          error: the exception.
          text: what failed.
        """
        with self._lock:
            self.count += 1
            self._kept.append(error)
        self._allowance.log(_log, logging.ERROR, text, error)
