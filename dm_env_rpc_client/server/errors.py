"""Errors of requests and environments, and how they are attributed, stored and logged.

Code that converts the values of a request raises `RequestError` or runs in the context
`in_request`. Every other exception is attributed to the environment, even a SpecError, because the
invalid value may come from the environment.

The number of stored and logged errors is limited, so that an environment that fails in every step
cannot fill the memory and the log.
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
    """Raised to refuse a request. The client receives the code and message as an error Status.

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
        """Create the error for a request that is invalid regardless of the server's state.

        Args:
          message: as for the class.

        Returns:
          The error, with the code INVALID_ARGUMENT.
        """
        return cls(code_pb2.INVALID_ARGUMENT, message)

    @classmethod
    def not_now(cls, message: str) -> RequestError:
        """Create the error for a request that is invalid in the current state of the server.

        Args:
          message: as for the class.

        Returns:
          The error, with the code FAILED_PRECONDITION.
        """
        return cls(code_pb2.FAILED_PRECONDITION, message)


def refusal_of(error: BaseException) -> RequestError | None:
    """Return the exception if it is a refusal, or None if it is a failure of the environment.

    Answers, counters and logs all use this one distinction.

    Args:
      error: raised by a request, or by a row's part of it.
    """
    return error if isinstance(error, RequestError) else None


@contextlib.contextmanager
def in_request() -> Iterator[None]:
    """Turn errors raised while converting a client's values into RequestErrors.

    Yields:
      Nothing.

    Raises:
      RequestError: a value does not conform, or is not valid JSON.
    """
    try:
        yield
    except (SpecError, ProtocolError) as error:
        raise RequestError.invalid(str(error)) from error


def environments_own(error: Exception) -> RuntimeError:
    """Convert an environment's error to a type that cannot be mistaken for an argument error.

    Args:
      error: a ValueError, the type that also reports an invalid setting or action.
    """
    return RuntimeError(f"{type(error).__name__}: {error}")


def environment_error(error: Exception, of: str = "specs") -> RuntimeError:
    """Return the error for a value that violates the environment's own specs or space.

    Args:
      error: names the value and the problem.
      of: how the environment describes its values: "specs" or "space".
    """
    return RuntimeError(f"the environment violates its own {of}: {error}")


_log = logging.getLogger("dm_env_rpc_client.server")

Report: TypeAlias = Callable[[Exception, str], None]
"""A callback that receives an error and a description of it. It is called for errors raised by
rows of a batch, and for other errors that do not make a request fail."""


def unreported(error: Exception, text: str) -> None:
    """Ignore the error; used as the `Report` if there is no server."""


KEPT_ERRORS = 100
"""Maximum number of stored exceptions; the oldest are dropped."""

_BURST = 20
"""Maximum number of lines logged in a burst. After a burst, at most one line is logged every
`_SECONDS` seconds."""

_SECONDS = 10.0


class Allowance:
    """A thread-safe rate limit for log lines of one kind."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._credit = float(_BURST)
        self._seen = time.monotonic()
        self._left_out = 0

    def log(
        self, log: logging.Logger, level: int, text: str, error: BaseException | None = None
    ) -> None:
        """Log a line with the traceback of `error`, unless too many were logged recently."""
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
    """A thread-safe collection of exceptions.

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
        """The most recent exceptions, oldest first."""
        # A copy: other threads may add while the caller iterates.
        with self._lock:
            return list(self._kept)

    def add(self, error: BaseException, text: str) -> None:
        """Store an exception, and log its traceback unless too many were logged recently.

        Args:
          error: the exception.
          text: what failed.
        """
        with self._lock:
            self.count += 1
            self._kept.append(error)
        self._allowance.log(_log, logging.ERROR, text, error)
