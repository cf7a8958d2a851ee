"""Every error that this package raises, in one tree.

    DmEnvRpcClientError
      DmEnvRpcError           the server answered a request with an error Status
      ConnectionClosedError   this side closed the connection   (a ConnectionError too)
      ConnectionLostError     the connection cannot be used     (a ConnectionError too)
      DeadlineExceededError   an answer did not come in time    (a TimeoutError too)
      EnvironmentsFailedError some environments of a batch failed
      LibraryError            a library behind the C interface reported a failure
      ProtocolError           the server, or a library, broke the protocol
      SpecError               a value, a spec or a name is invalid (a ValueError too)
        PropertyError         a property is missing, or refused a read or write

Exceptions carry what they know as attributes; `str()` composes the sentence.

## Which error, and what then

| error | also a | when | the connection |
| --- | --- | --- | --- |
| `SpecError` | `ValueError` | a value, spec or name is invalid; nothing was sent | is usable |
| `DmEnvRpcError` | | the server refused: `.code`, `.message`, `.details` | is usable |
| `ProtocolError` | | the server broke the protocol | is dead if the order is in doubt |
| `EnvironmentsFailedError` | | some of a batch failed: `.failures` | of the others is usable |
| `LibraryError` | | a C library reported a failure | |
| `DeadlineExceededError` | `TimeoutError` | no answer in time | is dead |
| `ConnectionLostError` | `ConnectionError` | there is no connection, or it is dead | is dead |
| `ConnectionClosedError` | `ConnectionError` | you closed it | is closed |

```python
import dm_env_rpc_client
from dm_env_rpc_client.server import Catch, serve

with serve(Catch) as server, dm_env_rpc_client.make(server.address) as env:
    env.reset()
    try:
        env.step({"paddle": 7})
    except dm_env_rpc_client.SpecError as error:
        print(error)  # action 'paddle' (uid 1): the value is 7, outside its bounds [0, 2]
    try:
        dm_env_rpc_client.make(server.address, {"rows": -1})
    except dm_env_rpc_client.DmEnvRpcError as error:
        print(error.code_name)  # INVALID_ARGUMENT
```

Answers carry no ids. After a missed deadline, an interrupted wait or an answer of the wrong type,
it is unknown which answer belongs to which request. The connection is then dead: every request
fails, with the first cause as `__cause__`. `connection.reopen()` opens a new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from google.protobuf import any_pb2
from google.rpc import code_pb2, status_pb2

__all__ = [
    "ConnectionClosedError",
    "ConnectionLostError",
    "DeadlineExceededError",
    "DmEnvRpcClientError",
    "DmEnvRpcError",
    "EnvironmentsFailedError",
    "LibraryError",
    "PropertyError",
    "ProtocolError",
    "SpecError",
]


class DmEnvRpcClientError(Exception):
    """The root of this package's errors."""


class DmEnvRpcError(DmEnvRpcClientError):
    """The server answered a request with an error Status.

    The request had no effect as far as the protocol goes ("Errors" in the protocol
    overview), the answers before and after it are untouched and the connection stays
    usable.

    Args:
      status_proto: the google.rpc.Status of the answer.
    """

    def __init__(self, status_proto: status_pb2.Status):
        super().__init__(status_proto)
        self._status = status_pb2.Status()
        self._status.CopyFrom(status_proto)

    @property
    def status(self) -> status_pb2.Status:
        """The google.rpc.Status itself."""
        return self._status

    @property
    def code(self) -> int:
        """The google.rpc.Code of the error, as a number."""
        return int(self._status.code)

    @property
    def code_name(self) -> str:
        """The name of `code`, such as "NOT_FOUND"; the number if it has none."""
        try:
            return str(code_pb2.Code.Name(self._status.code))
        except ValueError:
            return str(self._status.code)

    @property
    def message(self) -> str:
        """What the server says about the error."""
        return str(self._status.message)

    @property
    def details(self) -> Sequence[any_pb2.Any]:
        """Packed messages that the server added."""
        return list(self._status.details)

    def __str__(self) -> str:
        return f"the server answered {self.code_name}: {self.message or '(no message)'}"

    def __repr__(self) -> str:
        return f"DmEnvRpcError(code={self.code_name}, message={self.message!r})"

    def __reduce__(self) -> tuple[type[DmEnvRpcError], tuple[status_pb2.Status]]:
        return type(self), (self._status,)


class ConnectionClosedError(DmEnvRpcClientError, ConnectionError):
    """The connection was closed on this side, before the request or during it."""


class ConnectionLostError(DmEnvRpcClientError, ConnectionError):
    """There is no connection, or it can no longer be trusted to keep answers in order.

    `__cause__` is the first thing that went wrong with it. Open a new connection.

    Attributes:
      code: the name of the gRPC status with which the stream ended, such as
        "UNAVAILABLE"; None if there was none.
    """

    def __init__(self, message: str, code: str | None = None):
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type[ConnectionLostError], tuple[str, str | None]]:
        return type(self), (str(self), self.code)


class DeadlineExceededError(DmEnvRpcClientError, TimeoutError):
    """An answer did not come in time.

    A late answer would be taken for that of the next request, so the connection is dead.
    """


class EnvironmentsFailedError(DmEnvRpcClientError):
    """Some environments of a batch failed; the answers of all others have been read.

    `__cause__` is the failure of the first of them.

    Attributes:
      failures: what went wrong, by the environment's index in the batch.
      addresses: where each of these environments is, by the same index.
    """

    def __init__(self, failures: Mapping[int, Exception], addresses: Mapping[int, str]):
        super().__init__(failures, addresses)
        self.failures = dict(sorted(failures.items()))
        self.addresses = dict(addresses)
        self.__cause__ = next(iter(self.failures.values()))

    def __str__(self) -> str:
        (index, failure), *others = self.failures.items()
        text = f"environment {index} at {self.addresses[index]} failed: {failure}"
        if others:
            indices = ", ".join(str(index) for index, _ in others[:_LISTED])
            more = ", ..." if len(others) > _LISTED else ""
            text += f" (and {len(others)} more: {indices}{more}; see .failures)"
        return text


_LISTED = 8


class LibraryError(DmEnvRpcClientError):
    """A library behind the C interface reported a failure.

    Attributes:
      function: the function of the interface that failed, such as "start".
      code: the number that it returned.
      message: what the library says about it.
    """

    def __init__(self, function: str, code: int, message: str):
        super().__init__(function, code, message)
        self.function = function
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"the library's {self.function} failed with code {self.code}: {self.message}"


class ProtocolError(DmEnvRpcClientError):
    """The server broke the protocol; or a library broke the interface that it offers."""


class SpecError(DmEnvRpcClientError, ValueError):
    """A value, a spec or a name is invalid."""


class PropertyError(SpecError):
    """A property is missing, or does not allow what was tried.

    Attributes:
      operation: "read", "write" or "list".
      key: the key of the property.
      result: why not: "NOT_FOUND", "PERMISSION_DENIED" or "INVALID_ARGUMENT".
    """

    def __init__(self, operation: str, key: str, result: str):
        super().__init__(operation, key, result)
        self.operation = operation
        self.key = key
        self.result = result

    def __str__(self) -> str:
        reason = {
            "NOT_FOUND": "there is no such property",
            "PERMISSION_DENIED": f"its attributes do not allow it to be {_DONE[self.operation]}",
            "INVALID_ARGUMENT": "it does not take this value",
        }[self.result]
        return f"cannot {self.operation} property {self.key!r}: {reason}"


_DONE = {"read": "read", "write": "written", "list": "listed"}
