"""All errors that this package raises, in one class hierarchy.

    DmEnvRpcClientError
      DmEnvRpcError             the server answered a request with an error Status
        PropertyError           a property was not read, written or listed
          PropertyNotFoundError    there is no such property      (also a KeyError)
          PropertyPermissionError  its attributes do not allow it (also a PermissionError)
          PropertyValueError       the value is invalid for it    (also a ValueError)
      ConnectionClosedError     the connection was closed on this side (also a ConnectionError)
      ConnectionLostError       the connection is unusable             (also a ConnectionError)
      DeadlineExceededError     an answer was not received in time     (also a TimeoutError)
      EnvironmentsFailedError   some environments of a batch failed
      AgentsFailedError         some agents of a world failed
      LaunchError               a server was not started, or has ended
      LibraryError              a library behind the C interface reported a failure
      RecordingError            a recording cannot be written or read
      ProtocolError             the server, or a library, broke the protocol
      SpecError                 a value, spec or name is invalid       (also a ValueError)
        UnknownNameError        there is no action or observation of this name or UID
                                                                       (also a KeyError)

If `make(restart=...)` replaces a lost environment, the loss is reported as a RestartWarning.

Exceptions store their data as attributes, and `str()` composes the error message.

The errors are documented in `docs/reference/errors.md`.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from google.protobuf import any_pb2, message
from google.rpc import code_pb2, error_details_pb2, status_pb2

from dm_env_rpc_client.plain_text import printable

__all__ = [
    "AgentsFailedError",
    "ConnectionClosedError",
    "ConnectionLostError",
    "DeadlineExceededError",
    "DmEnvRpcClientError",
    "DmEnvRpcError",
    "EnvironmentsFailedError",
    "LaunchError",
    "LibraryError",
    "PropertyError",
    "PropertyNotFoundError",
    "PropertyPermissionError",
    "PropertyValueError",
    "ProtocolError",
    "RecordingError",
    "RestartWarning",
    "SpecError",
    "UnknownNameError",
]


ON_THE_SERVER = "On the server:"
"""The heading printed above a traceback that a server sent."""


class DmEnvRpcClientError(Exception):
    """The base class of all errors raised by this package.

    `str()` escapes control characters, because a message can quote data sent by a peer and
    tracebacks are printed on terminals and in logs. Attributes contain the values as received.
    """

    def __str__(self) -> str:
        return printable(self._text())

    def _text(self) -> str:
        # KeyError's own __str__ would put the text in quotes.
        return BaseException.__str__(self)


class DmEnvRpcError(DmEnvRpcClientError):
    """The server answered a request with an error Status.

    According to the protocol, the request had no effect ("Errors" in the protocol overview).
    Answers to other requests are unaffected, and the connection remains usable.

    If the answer contains the environment's traceback, in a google.rpc.DebugInfo, Python prints
    this traceback below its own. The traceback is added to the exception as a note or,
    before Python 3.11, to the error message.

    Args:
      status_proto: the google.rpc.Status of the answer.
    """

    def __init__(self, status_proto: status_pb2.Status):
        super().__init__(status_proto)
        self._status = status_pb2.Status()
        self._status.CopyFrom(status_proto)
        self._note = _traceback_in(status_proto)
        if self._note and sys.version_info >= (3, 11):
            self.add_note(self._note)

    @property
    def status(self) -> status_pb2.Status:
        """The google.rpc.Status message of the answer."""
        return self._status

    @property
    def code(self) -> int:
        """The google.rpc.Code of the error, as a number."""
        return int(self._status.code)

    @property
    def code_name(self) -> str:
        """The name of `code`, such as "NOT_FOUND", or the number if the code has no name."""
        try:
            return str(code_pb2.Code.Name(self._status.code))
        except ValueError:
            return str(self._status.code)

    @property
    def message(self) -> str:
        """The error message sent by the server."""
        return str(self._status.message)

    @property
    def details(self) -> Sequence[any_pb2.Any]:
        """The packed detail messages that the server sent."""
        return list(self._status.details)

    def _text(self) -> str:
        # Servers of the 1.0 line send errors with the code 0, which is called OK.
        what = self.code_name if self.code else "an error without a code"
        text = f"the server answered {what}: {self.message or '(no message)'}"
        if self._note and sys.version_info < (3, 11):
            text += f"\n{self._note}"
        return text

    def __repr__(self) -> str:
        return f"{type(self).__name__}(code={self.code_name}, message={self.message!r})"

    def __reduce__(self) -> tuple[type[DmEnvRpcError], tuple[Any, ...]]:
        return type(self), (self._status,)


def _traceback_in(status_proto: status_pb2.Status) -> str:
    for detail in status_proto.details:
        info = error_details_pb2.DebugInfo()
        try:
            is_info = detail.Unpack(info)
        except message.DecodeError:
            continue
        if is_info and info.stack_entries:
            lines = "".join(info.stack_entries).rstrip("\n")
            return printable(f"{ON_THE_SERVER}\n{lines}\n{info.detail}")
    return ""


class PropertyError(DmEnvRpcError):
    """A property could not be read, written or listed.

    The operation was refused by a server, or by an environment in this process. An environment in
    this process produces the same Status as a server, so that code can handle both in the same
    way.

    Args:
      operation: "read", "write" or "list".
      key: the key of the property; several keys are separated by commas.
      status_proto: the Status with the reason for the refusal.

    Attributes:
      operation: "read", "write" or "list".
      key: the key of the property, or several keys separated by commas.
    """

    def __init__(self, operation: str, key: str, status_proto: status_pb2.Status):
        super().__init__(status_proto)
        self.operation = operation
        self.key = key

    @staticmethod
    def of_status(operation: str, key: str, status_proto: status_pb2.Status) -> PropertyError:
        """Return an instance of the error class that matches the code of a Status.

        Args:
          operation: "read", "write" or "list".
          key: the key of the property; several keys are separated by commas.
          status_proto: the Status with the reason for the refusal.
        """
        kind = _PROPERTY_ERRORS.get(status_proto.code, PropertyError)
        return kind(operation, key, status_proto)

    @staticmethod
    def of_result(operation: str, key: str, result: str) -> PropertyError:
        """Return the error for an operation that an environment in this process refused.

        Args:
          operation: "read", "write" or "list".
          key: the key of the property; several keys are separated by commas.
          result: "NOT_FOUND", "PERMISSION_DENIED" or "INVALID_ARGUMENT".
        """
        reason = {
            "NOT_FOUND": "there is no such property",
            "PERMISSION_DENIED": f"its attributes do not allow it to be {_DONE[operation]}",
            "INVALID_ARGUMENT": "it does not accept this value",
        }[result]
        status_proto = status_pb2.Status(code=code_pb2.Code.Value(result), message=reason)
        return PropertyError.of_status(operation, key, status_proto)

    def _text(self) -> str:
        text = f"cannot {self.operation} property {self.key!r}"
        # Servers of this package already send the whole sentence.
        is_whole = self.message.startswith(text)
        return self.message if is_whole else f"{text}: {self.message or self.code_name}"

    def __reduce__(self) -> tuple[type[DmEnvRpcError], tuple[Any, ...]]:
        return type(self), (self.operation, self.key, self._status)


_DONE = {"read": "read", "write": "written", "list": "listed"}


class PropertyNotFoundError(PropertyError, KeyError):
    """The property does not exist (NOT_FOUND)."""


class PropertyPermissionError(PropertyError, PermissionError):
    """The property cannot be read, written or listed (PERMISSION_DENIED)."""


class PropertyValueError(PropertyError, ValueError):
    """The value is invalid for the property (INVALID_ARGUMENT)."""


_PROPERTY_ERRORS: dict[int, type[PropertyError]] = {
    code_pb2.NOT_FOUND: PropertyNotFoundError,
    code_pb2.PERMISSION_DENIED: PropertyPermissionError,
    code_pb2.INVALID_ARGUMENT: PropertyValueError,
}


class ConnectionClosedError(DmEnvRpcClientError, ConnectionError):
    """The connection was closed by this process, before or during the request."""


class ConnectionLostError(DmEnvRpcClientError, ConnectionError):
    """The connection failed, or answers can no longer be matched to requests reliably.

    `__cause__` is the first error of the connection. Open a new connection.

    Attributes:
      code: the name of the gRPC status that ended the stream, such as "UNAVAILABLE"; None if it
        ended without one.
      server_end: an error that describes how a server launched by this process ended, with its
        exit code and the end of its output; None if unknown.
    """

    def __init__(
        self, message: str, code: str | None = None, server_end: LaunchError | None = None
    ):
        super().__init__(message)
        self.message = message
        self.code = code
        self.server_end = server_end

    def _text(self) -> str:
        return self.message if self.server_end is None else f"{self.message}; {self.server_end}"

    def __reduce__(self) -> tuple[type[ConnectionLostError], tuple[Any, ...]]:
        return type(self), (self.message, self.code, self.server_end)


class DeadlineExceededError(DmEnvRpcClientError, TimeoutError):
    """An answer did not arrive in time.

    The connection is unusable after this error, because a late answer would be mistaken for the
    answer to the next request.
    """


class EnvironmentsFailedError(DmEnvRpcClientError):
    """Some environments of a batch failed.

    The answers of all other environments have been read.

    `__cause__` is the first failure.

    Attributes:
      failures: the exceptions by the environment's index in the batch.
      addresses: the server addresses of the failed environments, by the same index.
    """

    def __init__(self, failures: Mapping[int, Exception], addresses: Mapping[int, str]):
        super().__init__(failures, addresses)
        self.failures = dict(sorted(failures.items()))
        self.addresses = dict(addresses)
        self.__cause__ = next(iter(self.failures.values()))

    def _text(self) -> str:
        (index, failure), *others = self.failures.items()
        text = f"environment {index} at {self.addresses[index]} failed: {failure}"
        return text + _more([index for index, _ in others])


class AgentsFailedError(DmEnvRpcClientError):
    """Some agents of a world failed.

    The streams of all agents of the world have been ended.

    `__cause__` is the first failure.

    Attributes:
      failures: the exceptions by agent.
      address: the address of the server.
    """

    def __init__(self, failures: Mapping[Hashable, Exception], address: str):
        super().__init__(failures, address)
        self.failures = dict(failures)
        self.address = address
        self.__cause__ = next(iter(self.failures.values()))

    def _text(self) -> str:
        (agent, failure), *others = self.failures.items()
        text = f"agent {agent!r} at {self.address} failed: {failure}"
        return f"{text}{_more([name for name, _ in others])}; all agents have left the world"


_LISTED = 8


def _more(others: Sequence[Hashable]) -> str:
    """Return the part of an error message that lists the failures after the first."""
    if not others:
        return ""
    named = ", ".join(map(repr, others[:_LISTED])) + (", ..." if len(others) > _LISTED else "")
    return f" (and {len(others)} more: {named}; see .failures)"


class LaunchError(DmEnvRpcClientError):
    """A launched server did not start, or has ended.

    Attributes:
      reason: what happened, such as "ended with exit code 1".
      command: the command line, or the image of the container.
      exit_code: the server's exit code, negative if a signal ended it; None if it is still
        running.
      logs: the end of the server's output.
    """

    def __init__(self, reason: str, command: str, exit_code: int | None, logs: str):
        super().__init__(reason, command, exit_code, logs)
        self.reason = reason
        self.command = command
        self.exit_code = exit_code
        self.logs = logs

    def _text(self) -> str:
        lines = self.logs.splitlines()[-_LOG_LINES:]
        printed = "\n".join(["Its last lines:", *lines]) if lines else "It has printed nothing."
        return f"the server {self.reason}: {self.command}\n{printed}"


_LOG_LINES = 20


class LibraryError(DmEnvRpcClientError):
    """A library behind the C interface reported a failure.

    Attributes:
      function: the function of the interface that failed, such as "start".
      code: the error code that the function returned.
      message: the error message of the library.
    """

    def __init__(self, function: str, code: int, message: str):
        super().__init__(function, code, message)
        self.function = function
        self.code = code
        self.message = message

    def _text(self) -> str:
        return f"the library's {self.function} failed with code {self.code}: {self.message}"


class ProtocolError(DmEnvRpcClientError):
    """The server violated the protocol, or a library violated the C interface."""


class RecordingError(DmEnvRpcClientError):
    """A recording cannot be written, or a file is damaged or is not a recording."""


class SpecError(DmEnvRpcClientError, ValueError):
    """A value, a spec or a name is invalid."""


class UnknownNameError(SpecError, KeyError):
    """No action or observation has this name or UID."""


class RestartWarning(UserWarning):
    """An environment was lost and has been restarted, as requested by `restart=`.

    The warning is issued once for each loss.

    Programs that expect losses call `warnings.simplefilter("ignore", RestartWarning)`.
    """
