"""Wraps payloads in EnvironmentRequests and unwraps EnvironmentResponses.

The table at the top of this module is derived from the protobuf descriptors. The type of a request
determines its field in the envelope. The answer must set the field of the same name, or `error`
(see the introduction to the protocol overview).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from google.protobuf import any_pb2
from google.protobuf import message as protobuf_message
from google.rpc import status_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2, line_1_0_pb2
from dm_env_rpc_client.errors import DmEnvRpcError, ProtocolError, SpecError
from dm_env_rpc_client.tensors import bounded_parsing
from dm_env_rpc_client.tensors.codecs import read_varint, varint
from dm_env_rpc_client.tensors.memory_limits import DEFAULT, Budget, Limits

Request: TypeAlias = (
    dm_env_rpc_pb2.CreateWorldRequest
    | dm_env_rpc_pb2.JoinWorldRequest
    | dm_env_rpc_pb2.StepRequest
    | dm_env_rpc_pb2.ResetRequest
    | dm_env_rpc_pb2.ResetWorldRequest
    | dm_env_rpc_pb2.LeaveWorldRequest
    | dm_env_rpc_pb2.DestroyWorldRequest
    | any_pb2.Any
    | line_1_0_pb2.ReadPropertyRequest
    | line_1_0_pb2.WritePropertyRequest
    | line_1_0_pb2.ListPropertyRequest
)
Response: TypeAlias = Any
"""The response message for a request. The response to an `Any` is also an `Any`."""

EnvironmentRequest = dm_env_rpc_pb2.EnvironmentRequest
EnvironmentResponse = dm_env_rpc_pb2.EnvironmentResponse

# Servers of the 1.0 line use envelope fields for property requests whose numbers are reserved in
# the current messages.
_ENVELOPES: tuple[tuple[Any, Any], ...] = (
    (dm_env_rpc_pb2.EnvironmentRequest, dm_env_rpc_pb2.EnvironmentResponse),
    (line_1_0_pb2.PropertyRequest, line_1_0_pb2.PropertyResponse),
)
_FIELD_BY_TYPE: dict[str, str] = {}
_ENVELOPES_BY_FIELD: dict[str, tuple[Any, Any]] = {}
for _envelopes in _ENVELOPES:
    for _field in _envelopes[0].DESCRIPTOR.fields:
        _FIELD_BY_TYPE[_field.message_type.full_name] = _field.name
        _ENVELOPES_BY_FIELD[_field.name] = _envelopes


_ERROR_TAG = varint(
    dm_env_rpc_pb2.EnvironmentResponse.DESCRIPTOR.fields_by_name["error"].number << 3 | 2
)
_CODE, _MESSAGE, _DETAIL = 1 << 3, 2 << 3 | 2, 3 << 3 | 2
"""The protobuf tags of the fields of a Status."""

_DETAIL_BYTES = 64
"""The size, in bytes, charged for each field of an error in addition to the field's contents."""

DECODE_ERRORS = (protobuf_message.DecodeError, ValueError)
"""The exceptions that protobuf raises for invalid bytes. Its pure-Python implementation raises
ValueError for a string that is not UTF-8."""

Buffer: TypeAlias = bytes | bytearray | memoryview
"""A serialized message in a buffer that its receiver owns."""


class EncodedRequest(NamedTuple):
    """A request in serialized form."""

    field: str
    """The name of the payload field of the request and of its answer."""

    message: bytes
    """The serialized EnvironmentRequest."""

    decode: Callable[[Buffer], Any]
    """A function that decodes the serialized answer and raises the same errors as
    `decode_response`."""


Outgoing: TypeAlias = Request | EncodedRequest
"""A serialized request that a connection can send."""


def encode_request(request: Request, limits: Limits = DEFAULT) -> EncodedRequest:
    """Wrap a request in an EnvironmentRequest and serialize it.

    Args:
      request: the request.
      limits: the limits of its answer.

    Raises:
      SpecError: the message is not a request of the protocol, or is too large.
    """
    if not isinstance(request, protobuf_message.Message):
        raise SpecError(f"a request must be a protobuf message, got {type(request).__name__}")
    field = _FIELD_BY_TYPE.get(request.DESCRIPTOR.full_name)
    if field is None:
        raise SpecError(
            f"{request.DESCRIPTOR.full_name} is not a dm_env_rpc request; pack your own "
            "messages into a google.protobuf.Any to send them as extensions"
        )
    envelope = _ENVELOPES_BY_FIELD[field][0]()
    payload = getattr(envelope, field)
    payload.SetInParent()
    try:
        payload.MergeFrom(request)
        message = envelope.SerializeToString()
    except (protobuf_message.EncodeError, TypeError, ValueError) as error:
        raise SpecError(f"the {field} request cannot be serialized: {error}") from error
    return EncodedRequest(
        field, message, functools.partial(decode_response, field=field, limits=limits)
    )


def decode_response(message: Buffer, field: str, limits: Limits = DEFAULT) -> Response:
    """Return the payload of the answer to a request.

    Args:
      message: the serialized EnvironmentResponse.
      field: the payload field of the request.
      limits: the limits of the answer. The text and details of an error that exceeds them are cut
        off.

    Raises:
      DmEnvRpcError: the answer is an error Status.
      ProtocolError: the message is not an EnvironmentResponse, is empty, answers another request,
        or exceeds the limits.
    """
    large = _large_error(message, limits.error_bytes)
    if large is not None:
        raise DmEnvRpcError(large)
    try:
        response = bounded_parsing.parse(
            _ENVELOPES_BY_FIELD[field][1], bytes(message), Budget(limits), "the answer"
        )
    except SpecError as error:
        raise over_limit(field, message, error) from error
    except DECODE_ERRORS as error:
        raise ProtocolError(
            f"the answer to a {field} request is not an EnvironmentResponse "
            f"({len(message)} bytes): {error}"
        ) from error
    answered = response.WhichOneof("payload")
    if answered == field:
        return getattr(response, field)
    if answered == "error":
        raise DmEnvRpcError(response.error)
    raise ProtocolError(
        f"the answer to a {field} request contains {answered or 'no payload'}; expected {field} or "
        "error"
    )


def answer_field(payload: protobuf_message.Message) -> str:
    """Return the name of the EnvironmentResponse field for messages of this type.

    Raises:
      SpecError: no field has this type.
    """
    for field in dm_env_rpc_pb2.EnvironmentResponse.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.full_name == (
            payload.DESCRIPTOR.full_name
        ):
            return str(field.name)
    raise SpecError(f"{payload.DESCRIPTOR.full_name} is not a dm_env_rpc response")


def over_limit(field: str, message: Buffer, cause: SpecError) -> ProtocolError:
    """Return the error for an answer that would require too much memory.

    Args:
      field: the payload field of the request.
      message: the answer.
      cause: the error that names the exceeded limit.
    """
    return ProtocolError(
        f"the answer to a {field} request ({len(message)} bytes) exceeds a limit: {cause}"
    )


def _large_error(message: Buffer, size: int) -> status_pb2.Status | None:
    """Return the error in a large answer, truncated to `size` bytes, or None if there is no error.

    The error is truncated before parsing, because the parsed error would be in memory several
    times.
    """
    if len(message) <= size or message[0] != _ERROR_TAG[0]:
        return None
    try:
        return _cut_error(message, size)
    except (IndexError, *DECODE_ERRORS):
        return None  # protobuf reports the problem.


def _cut_error(message: Buffer, size: int) -> status_pb2.Status | None:
    cut = status_pb2.Status()
    length, i = read_varint(message, len(_ERROR_TAG))
    if message[: len(_ERROR_TAG)] != _ERROR_TAG or i + length != len(message):
        return None
    left = size
    while i < len(message) and left > 0:
        tag, i = read_varint(message, i)
        number, start = read_varint(message, i)
        i = start if tag == _CODE else start + number
        left -= _DETAIL_BYTES
        if tag == _CODE:
            cut.code = number
        elif tag == _MESSAGE:
            text = bytes(message[start : min(i, start + left)]).decode(errors="ignore")
            left -= number
            cut.message = text if left >= 0 else f"{text}... ({number} bytes)"
        elif tag == _DETAIL and number <= left:
            left -= number
            cut.details.add().MergeFromString(bytes(message[start:i]))
    return cut
