"""A raw stream to the server under test, which assumes nothing and records the requests."""

from __future__ import annotations

import collections
import time
from collections.abc import Mapping
from typing import Any

from google.protobuf import message as protobuf_message
from google.protobuf import text_format
from google.rpc import code_pb2, status_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2, line_1_0_pb2
from dm_env_rpc_client.compliance.outcome import NotOfferedError, ViolationError
from dm_env_rpc_client.errors import DmEnvRpcClientError
from dm_env_rpc_client.protocol import envelopes
from dm_env_rpc_client.transports.endpoint import Endpoint
from dm_env_rpc_client.transports.opening import open_stream

END = "the end of the stream"
"""How the end of a stream is reported where an answer was due; the words of the server follow."""

_SHOWN = 300
"""The number of characters of a message that are shown."""

_LAST = 6
"""The most requests that are shown."""

_CLOSE_SECONDS = 0.5

# A server need only implement JoinWorld, Step and LeaveWorld.
_OPTIONAL = {"create_world", "destroy_world", "reset", "reset_world", "extension"}

# Servers of the 1.0 line have properties in the envelope itself, where today's has no fields.
_OF_LINE_1_0 = {field.name for field in line_1_0_pb2.PropertyRequest.DESCRIPTOR.fields}

_LEAVE = dm_env_rpc_pb2.LeaveWorldRequest()

# The checks that report what any check can come across; see ViolationError.
_JOINS = ("a_world_can_be_joined",)
_KINDS = ("answers_are_of_the_requests_kind",)


def describe(message: protobuf_message.Message) -> str:
    """Returns a message as one line of text, cut off if it is long."""
    text = text_format.MessageToString(message, as_one_line=True)
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN]}... ({message.ByteSize()} bytes)"
    name = str(message.DESCRIPTOR.name)
    return f"{name} {{ {text} }}" if text else name


def _described(request: envelopes.Request | None) -> str:
    return "an EnvironmentRequest without a payload" if request is None else describe(request)


class Probe:
    """A stream that records what was sent and counts what is pending.

    Args:
      address: the server.
      timeout: seconds to wait for the connection and for each answer.
      security: the arguments of `connect` for TLS, token and plaintext to another machine.

    Attributes:
      is_clean: whether every answer so far was a valid one to its request.
      is_open: whether it was not closed yet.
      was_answered: whether an answer has come.
      was_refused: whether a request got an error; the server may have closed the stream then.
      pending: the number of requests without an answer.
      created: the names of the worlds that were created here, also against expectation.

    Raises:
      DmEnvRpcClientError: the connection failed.
    """

    def __init__(self, address: str, timeout: float, security: Mapping[str, Any]):
        self._stream = open_stream(Endpoint(address, transport="grpc", **security), timeout)
        self._timeout = timeout
        self._sent: collections.deque[envelopes.Request | None] = collections.deque(maxlen=_LAST)
        self.is_clean = True
        self.is_open = True
        self.was_answered = False
        self.was_refused = False
        self.pending = 0
        self.created: list[str] = []

    def send(self, request: envelopes.Request | None) -> str:
        """Sends a request, or for None an envelope without one, and does not wait.

        Returns:
          Its payload field.
        """
        self.pending += 1
        self._sent.append(request)
        if request is None:
            self._stream.write(dm_env_rpc_pb2.EnvironmentRequest().SerializeToString())
            return ""
        encoded = envelopes.encode_request(request)
        self._stream.write(encoded.message)
        return encoded.field

    def receive(self, expected: str, field: str = "") -> Any:
        """Waits for the next answer.

        Args:
          expected: the answer that the clause demands, for the ViolationError.
          field: the payload field of the request.

        Returns:
          An EnvironmentResponse; for a property request of the 1.0 line a PropertyResponse.

        Raises:
          ViolationError: no answer came in time, the stream ended, or the answer was not an
            EnvironmentResponse.
        """
        try:
            message = self._stream.read(self._timeout)
        except DmEnvRpcClientError as error:
            received = f"{END}: {error}"
            raise self.violation(expected, received, is_unanswered=True) from error
        if message is None:
            received = f"no answer within {self._timeout} s"
            raise self.violation(expected, received, is_unanswered=True)
        self.pending -= 1
        self.was_answered = True
        envelope: Any = dm_env_rpc_pb2.EnvironmentResponse
        if field in _OF_LINE_1_0:
            envelope = line_1_0_pb2.PropertyResponse
        try:
            return envelope.FromString(bytes(message))
        except (protobuf_message.DecodeError, ValueError) as error:
            received = f"not an EnvironmentResponse: {error}"
            raise self.violation(expected, received, concerns=_JOINS) from error

    def has_answer(self, seconds: float) -> bool:
        """Whether an answer, or the end of the stream, comes within `seconds`."""
        deadline = time.monotonic() + seconds
        while not self._stream.has_unread():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def answer(self, field: str, expected: str) -> Any:
        """Waits for the answer to a `field` request: its own response or an error.

        Returns:
          The response message, or the error Status.

        Raises:
          ViolationError: the answer is neither.
        """
        response = self.receive(expected, field)
        answered = response.WhichOneof("payload")
        if answered not in (field, "error"):
            found = describe(response) if answered else "an EnvironmentResponse without a payload"
            raise self.violation(f"{expected}: {_named(field)} or an error", found, concerns=_KINDS)
        self.was_refused |= answered == "error"
        payload = getattr(response, answered)
        if answered == "create_world":
            self.created.append(payload.world_name)
        return payload

    def is_answered(self) -> bool:
        """Whether the server answers here; sends a LeaveWorld, which every state allows.

        `was_refused` tells whether that was with an error.
        """
        self.send(_LEAVE)
        try:
            response = self.receive("an answer")
        except ViolationError:
            return False
        self.was_refused |= response.WhichOneof("payload") == "error"
        return True

    def ask(self, request: envelopes.Request, expected: str = "an answer") -> Any:
        """Sends a request and returns its response message or an error Status."""
        return self.answer(self.send(request), expected)

    def accepted(self, field: str, expected: str, concerns: tuple[str, ...] = ()) -> Any:
        """Waits for the answer to a request that the server has no reason to refuse.

        Args:
          field: the payload field of the request.
          expected: the answer that the clause demands.
          concerns: the checks that test whether it is refused, as in ViolationError.

        Raises:
          NotOfferedError: the server does not implement the request, which is optional.
          ViolationError: the answer is an error, or as for `answer`.
        """
        answer = self.answer(field, expected)
        if isinstance(answer, status_pb2.Status):
            if field in _OPTIONAL and answer.code == code_pb2.UNIMPLEMENTED:
                raise NotOfferedError(f"the server does not implement {field}: {answer.message}")
            raise self.violation(expected, answer, concerns=concerns)
        return answer

    def accept(
        self, request: envelopes.Request, expected: str, concerns: tuple[str, ...] = ()
    ) -> Any:
        """Sends a valid request and returns its response; arguments and errors as `accepted`."""
        return self.accepted(self.send(request), expected, concerns)

    def refused(
        self, field: str, expected: str, concerns: tuple[str, ...] = ()
    ) -> status_pb2.Status:
        """Waits for the error that a request must get; arguments as for `accepted`.

        Raises:
          ViolationError: any other answer came, or none.
        """
        answer = self.answer(field, expected)
        if not isinstance(answer, status_pb2.Status):
            raise self.violation(expected, answer, concerns=concerns)
        return answer

    def refuse(
        self, request: envelopes.Request, expected: str, concerns: tuple[str, ...] = ()
    ) -> status_pb2.Status:
        """Sends a request that the server must refuse and returns the error; see `refused`."""
        return self.refused(self.send(request), expected, concerns)

    def violation(
        self,
        expected: str,
        received: str | protobuf_message.Message,
        is_unanswered: bool = False,
        concerns: tuple[str, ...] = (),
    ) -> ViolationError:
        """Returns a ViolationError with the last requests, and marks the stream as not clean."""
        self.is_clean = False
        if isinstance(received, protobuf_message.Message):
            received = describe(received)
        shown = max(1, self.pending + (not is_unanswered))
        sent = "; ".join(map(_described, list(self._sent)[-shown:]))
        return ViolationError(expected, sent, received, is_unanswered, concerns)

    def hurry(self, timeout: float) -> None:
        """Waits for each further answer `timeout` seconds at most."""
        self._timeout = min(self._timeout, timeout)

    def abort(self) -> None:
        """Ends the stream at once, even if another thread waits for an answer."""
        self.is_open = False
        self._stream.abort()

    def close(self) -> None:
        """Closes the stream; a second time does nothing."""
        if self.is_open:
            self.is_open = False
            self._stream.close(_CLOSE_SECONDS)


def _named(field: str) -> str:
    camel = "".join(part.capitalize() for part in field.split("_"))
    return "an extension" if field == "extension" else f"a {camel}Response"
