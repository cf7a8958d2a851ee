"""Who is at fault when a request fails: the client that sent it, or the environment.

What converts values of a request raises `RequestError`, or does so `in_request`. Every other
exception is the environment's: also a SpecError, which may be about a value of the environment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from google.rpc import code_pb2

from dm_env_rpc_client.errors import ProtocolError, SpecError


class RequestError(Exception):
    """A request is refused; the client receives code and text as an error Status.

    Args:
      code: a google.rpc.Code, such as `code_pb2.NOT_FOUND`.
      message: what is wrong and what to do about it.
    """

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return RequestError, (self.code, str(self))

    @classmethod
    def invalid(cls, message: str) -> RequestError:
        """Makes the error for a request that is invalid in every state of the server.

        Args:
          message: as for the class.

        Returns:
          The error, with the code INVALID_ARGUMENT.
        """
        return cls(code_pb2.INVALID_ARGUMENT, message)

    @classmethod
    def not_now(cls, message: str) -> RequestError:
        """Makes the error for a request that is invalid in the current state of the server.

        Args:
          message: as for the class.

        Returns:
          The error, with the code FAILED_PRECONDITION.
        """
        return cls(code_pb2.FAILED_PRECONDITION, message)


def refusal_of(error: BaseException) -> RequestError | None:
    """Returns the refusal of a request that an exception is; None if the environment has failed.

    All that answers, counts or logs what a request has raised asks here.

    Args:
      error: what executing a request, or a row's part of it, has raised.
    """
    return error if isinstance(error, RequestError) else None


@contextlib.contextmanager
def in_request() -> Iterator[None]:
    """Makes RequestErrors of the errors of converting what a client has sent.

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
    """Returns an error of an environment in a form that nobody takes for that of an argument.

    Args:
      error: a ValueError, which also says that a setting or an action is invalid.
    """
    return RuntimeError(f"{type(error).__name__}: {error}")


def environment_error(error: Exception, of: str = "specs") -> RuntimeError:
    """Returns the error for a value of an environment that does not conform.

    Args:
      error: says which value, and what is wrong.
      of: what the environment has described its values with: "specs" or "space".
    """
    return RuntimeError(f"the environment violates its own {of}: {error}")
