"""Steps of one agent as bytes: the hot path.

Almost everything in a step follows from the specs: UIDs, tags, lengths, shapes, the requested
observations. These parts are serialized once, when the specs arrive. A StepRequest is then
joined from them and the elements of its actions. In a StepResponse the known parts are compared
with the received bytes, and large arrays are views of the memory into which the transport has
read the message. Their elements have been copied only once then, out of the socket.

The reader knows the one form in which every protobuf library writes such a message: fields in
order, elements packed, shapes complete. Every other legal form (elements one by one, open
shapes, one element for all, fields in several parts, unknown fields) and every invalid message
goes through protobuf and `SpecManager.unpack`, which report what is wrong.

Speed relative to the reference package (`python -m tests.benchmarks --only codec`): float32
84x84x4 decode 168x to 200x, encode 58x to 65x; scalars decode 1.8x to 4x, encode 1.2x to 5x.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.protocol import envelopes
from dm_env_rpc_client.protocol.envelopes import Buffer, EncodedRequest
from dm_env_rpc_client.tensors import bounded_parsing, nesting, packing
from dm_env_rpc_client.tensors.codecs import read_varint, varint
from dm_env_rpc_client.tensors.limits import DEFAULT, Budget, Limits
from dm_env_rpc_client.tensors.spec_manager import SpecManager, TensorField

__all__ = ["StepAnswer", "StepCodec", "answer_memory"]

_STEP = "step"

# Tags: the number of the field << 3 | its wire type.
_ENVELOPE_STEP = 0x1A
_STATE = 0x08
_OBSERVATION = 0x12
_KEY = 0x08
_VALUE = 0x12
_ACTION = b"\x0a"
_REQUESTED = b"\x12"
_SHAPE = b"\x7a"

_MAX_MESSAGE_BYTES = (1 << 31) - 1
"""The largest message that protobuf supports."""

_MAX_KNOWN_ACTIONS = 1024
"""The number of encoded values that are cached for each integer action."""


_LARGE_BYTES = 1 << 14
"""Messages above this are received into memory that is not cleared first."""

_ALIGNMENT = 16


def answer_memory(size: int) -> memoryview:
    """Returns memory for a message, in which the elements of one large observation are aligned.

    Args:
      size: bytes of the message.
    """
    if size <= _LARGE_BYTES:
        return memoryview(bytearray(size))
    # NumPy's memory is aligned, not cleared, and of large pages. Before the elements come five
    # lengths, each behind its tag, a state and a UID of one byte.
    start = -(5 * (1 + (size.bit_length() + 6) // 7) + 4) % _ALIGNMENT
    return np.empty(size + start, np.uint8)[start:].data


class StepAnswer(NamedTuple):
    """The contents of a StepResponse."""

    state: int
    """The EnvironmentStateType."""

    observations: dict[str, Any]
    """The requested observations by flat name: arrays, scalars and strings, as
    `SpecManager.unpack` returns them."""


class StepCodec:
    """Encodes actions as StepRequests and decodes observations from StepResponses.

    Args:
      actions: the specs of all actions.
      observations: the specs of all observations.
      requested: the UIDs of the observations to request.
      limits: what an answer may contain.

    Attributes:
      answer_bytes: an estimate of the size of an answer, from the specs.
    """

    def __init__(
        self,
        actions: SpecManager,
        observations: SpecManager,
        requested: Sequence[int],
        limits: Limits = DEFAULT,
    ):
        self._actions = actions
        self._observations = observations
        self._requested = requested
        self._names = [observations.uid_to_name(uid) for uid in requested]
        self._writers = {name: _ActionWriter(actions.field(name)).write for name in actions.names()}
        self._limits = limits
        self._budget = _MessageBudget(limits)
        fields = [observations.field(name) for name in self._names]
        # All integers that are stored as varints, if each of them took no bytes in a message.
        expanded = sum(_size(field) for field in fields if _is_varint(field))
        is_bounded = expanded <= limits.expanded_bytes
        self._readers = {
            field.uid: (index, _observation_reader(field, self._budget, is_bounded))
            for index, field in enumerate(fields)
        }
        self._has_generic = any(
            _is_generic(field) or (_is_varint(field) and not is_bounded) for field in fields
        )
        # Parts that were not asked for take no memory, but time.
        self._max_others = limits.specs + len(fields)
        self.answer_bytes = sum(_size(observations.field(name)) for name in self._names)
        uids = b"".join(map(varint, requested))
        self._tail = _REQUESTED + varint(len(uids)) + uids if uids else b""

    def encode(self, action: Mapping[str, Any]) -> EncodedRequest:
        """Returns the encoded request of a step.

        Args:
          action: values by name, flat or nested; any of them may be left out.

        Raises:
          SpecError: an action does not conform to its spec; see `SpecManager.pack`.
        """
        writers = self._writers
        if not action.keys() <= writers.keys():
            action = nesting.flatten_dict(action, nesting.SEPARATOR, strict=False)
        parts = [b""]
        for name, value in action.items():
            write = writers.get(name)
            if write is None:
                self._actions.field(name)  # Raises an error with the known names.
                raise AssertionError
            parts.append(write(value))
        parts.append(self._tail)
        size = sum(map(len, parts))
        parts[0] = b"\x1a" + varint(size)
        if size + len(parts[0]) > _MAX_MESSAGE_BYTES:
            raise SpecError(
                f"the actions take {size} bytes together; a message holds {_MAX_MESSAGE_BYTES}"
            )
        return EncodedRequest(_STEP, b"".join(parts), self.decode)

    def decode(self, message: Buffer) -> StepAnswer | dm_env_rpc_pb2.StepResponse:
        """Decodes an answer.

        Args:
          message: the serialized EnvironmentResponse. Large arrays of the result are views of
            its memory if it is writable.

        Returns:
          A StepAnswer, or the StepResponse for `interpret` if it is not in the usual form.

        Raises:
          DmEnvRpcError, ProtocolError: as `envelopes.decode_response`.
        """
        try:
            answer = self._scan(message)
        except IndexError:  # The message ends in the middle of a field.
            answer = None
        if answer is not None:
            return answer
        response: dm_env_rpc_pb2.StepResponse = envelopes.decode_response(
            bytes(message), _STEP, self._limits
        )
        return response

    def interpret(self, answer: StepAnswer | dm_env_rpc_pb2.StepResponse) -> StepAnswer:
        """Returns the StepAnswer for the result of `decode`.

        Raises:
          ProtocolError: a requested observation is missing or violates its spec.
        """
        if isinstance(answer, StepAnswer):
            return answer
        received = answer.observations
        requested = {}
        for uid, name in zip(self._requested, self._names, strict=True):
            if uid not in received:
                raise ProtocolError(
                    f"the server left out observation {name!r} (uid {uid}), which was requested"
                )
            requested[uid] = received[uid]
        try:
            return StepAnswer(answer.state, self._observations.unpack(requested))
        except SpecError as error:
            raise ProtocolError(f"the server violated its own specs: {error}") from error

    def _scan(self, message: Buffer) -> StepAnswer | None:
        """Decodes an answer in the usual form; returns None for any other form."""
        total = len(message)
        if not total or message[0] != _ENVELOPE_STEP:
            return None
        size, i = read_varint(message, 1)
        if i + size != total:
            return None
        if self._has_generic:
            self._budget.renew(message)
        state = others = 0
        left = len(self._names)
        values: list[Any] = [_MISSING] * left
        while i < total:
            tag = message[i]
            if tag == _OBSERVATION:
                size = message[i + 1]
                i += 2
                if size > 0x7F:
                    size, i = read_varint(message, i - 1)
                end = i + size
                if end > total or message[i] != _KEY:
                    return None
                uid = message[i + 1]
                i += 2
                if uid > 0x7F:
                    uid, i = read_varint(message, i - 1)
                if message[i] != _VALUE:
                    return None
                size = message[i + 1]
                i += 2
                if size > 0x7F:
                    size, i = read_varint(message, i - 1)
                if i + size != end:
                    return None
                known = self._readers.get(uid)
                if known is None:  # It was not requested.
                    i = end
                    others += 1
                    if others > self._max_others:
                        return None
                    continue
                index, read = known
                value = read(message, i, end)
                if value is _MISSING or values[index] is not _MISSING:
                    return None
                values[index] = value
                left -= 1
                i = end
            elif tag == _STATE:
                state = message[i + 1]
                others += 1
                if state > 0x7F or others > self._max_others:
                    return None
                i += 2
            else:
                return None
        if left:
            return None
        return StepAnswer(state, dict(zip(self._names, values, strict=True)))


class _Missing:
    """A marker: no observation has this value."""


_MISSING = _Missing()


class _ActionWriter:
    """Encodes the entry of one action in the map of a StepRequest."""

    def __init__(self, field: TensorField):
        self._field = field
        self._codec = field.codec
        self._uid = b"\x08" + varint(field.uid) + b"\x12"
        self._fixed_shape = None if field.variable else _encode_shape(field.shape)
        self._is_integer = field.shape == () and field.codec.dtype.kind in "iu"
        self._known: dict[int, bytes] = {}

    def write(self, value: Any) -> bytes:
        """Returns the entry; SpecError if the value does not conform to the spec."""
        if not self._is_integer:
            return self._entry(self._field.conform(value))
        # Discrete actions repeat. Cached values have been validated.
        if type(value) is int:
            number = value
        elif isinstance(value, np.ndarray | np.generic) and (
            value.ndim == 0 and value.dtype.kind in "iu"
        ):
            number = value.item()
        else:
            return self._entry(self._field.conform(value))
        entry = self._known.get(number)
        if entry is None:
            entry = self._entry(self._field.conform(value))
            if len(self._known) < _MAX_KNOWN_ACTIONS:
                self._known[number] = entry
        return entry

    def _entry(self, array: Any) -> bytes:
        field, codec = self._field, self._codec
        if codec.dtype.kind == "O" or not array.size:
            tensor = packing.pack_array(array, codec, field.label).SerializeToString()
        else:
            packing.check_packable(array, field.label)
            payload = codec.encode(array)
            shape = self._fixed_shape
            if shape is None:
                shape = _encode_shape(array.shape)
            tensor = b"".join((codec.tag, varint(len(payload)), payload, shape))
        length = varint(len(tensor))
        size = len(self._uid) + len(length) + len(tensor)
        return b"".join((_ACTION, varint(size), self._uid, length, tensor))


_Reader: TypeAlias = Callable[[Buffer, int, int], Any]
"""Decodes a Tensor from message[start:end]; `_MISSING` if it is not in the usual form."""


class _MessageBudget:
    """The budget of the message that is being read; its generic readers share it."""

    def __init__(self, limits: Limits):
        self._limits = limits
        self.values = Budget(limits)

    def renew(self, message: Buffer) -> None:
        """Begins a message; ProtocolError if its parts would take too much memory."""
        try:
            bounded_parsing.check(
                dm_env_rpc_pb2.EnvironmentResponse, message, Budget(self._limits), "the answer"
            )
        except SpecError as error:
            raise envelopes.over_limit(_STEP, message, error) from error
        self.values = Budget(self._limits)


def _is_generic(field: TensorField) -> bool:
    return field.codec.dtype.kind == "O" or field.variable


def _is_varint(field: TensorField) -> bool:
    return not _is_generic(field) and not field.codec.is_block


def _observation_reader(field: TensorField, budget: _MessageBudget, is_bounded: bool) -> _Reader:
    if _is_generic(field):
        return _generic_reader(field, budget)
    if field.codec.is_block:
        return _block_reader(field)
    return _varint_reader(field) if is_bounded else _generic_reader(field, budget)


def _block_reader(field: TensorField) -> _Reader:
    """For a fixed shape and elements that are stored in the message as in memory."""
    codec, shape = field.codec, field.shape
    wire_dtype = codec.dtype.newbyteorder("<")
    count = _product(shape)
    size = count * codec.dtype.itemsize
    elements = b"\x0a" + varint(size) if size else b""
    head = codec.tag + varint(len(elements) + size) + elements
    tail = _encode_shape(shape)
    length = len(head) + size + len(tail)
    is_bool = codec.dtype.kind == "b"
    is_scalar = shape == ()
    dtype = np.dtype(np.uint8) if is_bool else wire_dtype
    scalar = codec.dtype.type

    def read(message: Buffer, start: int, end: int) -> Any:
        block = start + len(head)
        if end - start != length or message[start:block] != head:
            return _MISSING
        if tail and message[block + size : end] != tail:
            return _MISSING
        array = np.frombuffer(message, dtype, count, block) if count else np.empty(0, dtype)
        if is_bool:
            # A bool of more than one byte, or with the value 2, is legal too.
            if count and array.max() > 1:
                return _MISSING
            array = array.view(np.bool_)
        if is_scalar:
            return scalar(array[0])
        flags = array.flags
        # A small array must not keep a large message in memory, and arithmetic on unaligned
        # elements is slow.
        if size * 2 < len(message) or not (flags.writeable and flags.aligned):
            array = array.astype(codec.dtype)
        return array.reshape(shape)

    return read


def _varint_reader(field: TensorField) -> _Reader:
    """For a fixed shape and integers that are stored as varints."""
    codec, shape = field.codec, field.shape
    count = _product(shape)
    tag = codec.tag[0]
    tail = _encode_shape(shape)
    scalar = codec.dtype.type
    is_scalar = shape == ()
    one = codec.tag + b"\x03\x0a\x01"
    head = b"\x0a" + varint(count)
    head_size = len(head)

    def read(message: Buffer, start: int, end: int) -> Any:
        if is_scalar and end - start == 5 and message[start : start + 4] == one:
            number = message[start + 4]
            return scalar(number) if number <= 0x7F else _MISSING
        if message[start] != tag:
            return _MISSING
        size, block = read_varint(message, start + 1)
        if block + size + len(tail) != end or (tail and message[block + size : end] != tail):
            return _MISSING
        payload = bytes(message[block : block + size])
        if (
            count
            and payload[:head_size] == head
            and size == head_size + count
            and (payload.isascii())
        ):
            # All varints have one byte: int64 84x84 is 1.4x as fast as through protobuf.
            array = np.frombuffer(payload, np.uint8, count, head_size).astype(codec.dtype)
        else:
            try:
                array = codec.decode(payload)
            except envelopes.DECODE_ERRORS:
                return _MISSING
            if array.size != count:
                return _MISSING
        return array[0] if is_scalar else array.reshape(shape)

    return read


def _generic_reader(field: TensorField, budget: _MessageBudget) -> _Reader:
    """For strings, messages, variable shapes, and more integers than `Limits` allow at once."""

    def read(message: Buffer, start: int, end: int) -> Any:
        try:
            tensor = dm_env_rpc_pb2.Tensor.FromString(bytes(message[start:end]))
            return field.unpack(tensor, budget.values)
        except (SpecError, *envelopes.DECODE_ERRORS):
            return _MISSING

    return read


def _encode_shape(shape: Sequence[int]) -> bytes:
    packed = b"".join(map(varint, shape))
    return _SHAPE + varint(len(packed)) + packed if packed else b""


def _size(field: TensorField) -> int:
    return _product([max(length, 1) for length in field.shape]) * field.codec.dtype.itemsize


def _product(shape: Sequence[int]) -> int:
    product = 1
    for length in shape:
        product *= length
    return product
