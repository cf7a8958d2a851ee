"""`RequestError`: a request that the server refuses. `environment_error`: no fault of a request."""

from __future__ import annotations

from typing import Any

from google.rpc import code_pb2


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


def environment_error(error: Exception, of: str = "specs") -> RuntimeError:
    """Returns the error for a value of an environment that does not conform.

    Args:
      error: says which value, and what is wrong.
      of: what the environment has described its values with: "specs" or "space".
    """
    return RuntimeError(f"the environment violates its own {of}: {error}")
