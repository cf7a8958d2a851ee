"""Encodes and decodes the packets of both dialects of gym-socket-api, without any I/O.

The `encode_...` functions return whole messages; the `read_...` functions read from a `Reader`.
Packets are numbered as in the section "Command packets" of the protocol document. Lengths are
checked before memory is allocated, so a peer cannot make this process allocate more than `Limits`
allows.

Integers are little endian, strings are UTF-8, a boolean is a byte with the value 0 or 1, and
floats are IEEE 754. A client sends a packet only after it has received the answer to the previous
one ("Command packets"). Whether a packet is answered depends only on its type and the dialect; see
`has_answer`. The dialect "first" follows the protocol document. The dialect "latest" adds a flag
`video` and an answer to Monitor, and adds packets 7 and 8 for Universe.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import struct
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from dm_env_rpc_client import arguments
from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.tensors import bounded_parsing
from dm_env_rpc_client.tensors.casting import MAX_DIMENSIONS

Dialect: TypeAlias = Literal["first", "latest"]

TRUNCATED = "TimeLimit.truncated"
"""The key in a step's info whose value is true if a time limit ended the episode."""


class WhichSpace(enum.IntEnum):
    """The space requested by a Get Space packet."""

    ACTION = 0
    OBSERVATION = 1


class Request:
    """A packet from a client."""


@dataclasses.dataclass(frozen=True)
class Handshake(Request):
    """A client's first message, with the name of the requested environment, or "" for none."""

    env_name: str


@dataclasses.dataclass(frozen=True)
class Reset(Request):
    """Packet 0, which begins an episode and is answered with an observation."""


@dataclasses.dataclass(frozen=True)
class Step(Request):
    """Packet 1, which takes a step with a JSON `action` and is answered with a `StepAnswer`."""

    action: Any


@dataclasses.dataclass(frozen=True)
class GetSpace(Request):
    """Packet 2, which requests a space and is answered with that space."""

    which: WhichSpace


@dataclasses.dataclass(frozen=True)
class SampleAction(Request):
    """Packet 3, which requests a sampled action and is answered with an action."""


@dataclasses.dataclass(frozen=True)
class Monitor(Request):
    """Packet 4, which requests a recording.

    The field `video` and the answer (an error string) exist only in the latest dialect.
    """

    directory: str
    resume: bool = False
    force: bool = False
    video: bool = False


@dataclasses.dataclass(frozen=True)
class Render(Request):
    """Packet 5, which requests rendering and has no answer."""


@dataclasses.dataclass(frozen=True)
class Upload(Request):
    """Packet 6, which requests an upload and is answered with an error string."""

    directory: str
    api_key: str
    algorithm_id: str


@dataclasses.dataclass(frozen=True)
class UniverseConfigure(Request):
    """Packet 7 of the latest dialect, which is answered with an error string."""

    settings: Any


@dataclasses.dataclass(frozen=True)
class UniverseWrap(Request):
    """Packet 8 of the latest dialect, which is answered with an error string."""

    wrapper: str
    settings: Any


class StepAnswer(NamedTuple):
    """The answer to a Step packet.

    Attributes:
      observation: a uint8 array if it was sent as a byte list, otherwise a JSON value.
      reward: float64.
      done: whether the episode is over.
      info: a JSON value.
    """

    observation: Any
    reward: float
    done: bool
    info: Any


_KIND_AND_LENGTH = struct.Struct("<BI")
_U32 = struct.Struct("<I")
_STEP_TAIL = struct.Struct("<dBI")
_JSON = 0
_BYTE_LIST = 1

MAX_SPACE_VALUES = 1 << 18
"""The maximum number of values in a space's JSON, in which a Box has two per element."""


class Reader(Protocol):
    """Reads the bytes of messages, but never more than requested."""

    def read(self, count: int) -> bytes:
        """Return exactly the next `count` bytes."""

    def read_into(self, memory: memoryview) -> None:
        """Fill `memory` with the next bytes."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """The maximum sizes of a peer's messages, in bytes.

    Attributes:
      name: the name of an environment or a wrapper.
      field: any other field. For a byte list of a known space, the size of the space applies.
      space: the JSON of a space. Two bounds for each value of a 210x160x3 screen need more than
        the default limit of a field.

    Raises:
      SpecError: a size is not a positive integer.
    """

    name: int = 256
    field: int = 1 << 20
    space: int = 2 << 20

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = arguments.count(f"{field.name} of Limits", getattr(self, field.name))
            object.__setattr__(self, field.name, value)


class ObservationBounds(NamedTuple):
    """The limits for observations, derived from the observation space.

    Attributes:
      shape: the shape of a byte list; None if the space is not a single array.
      values: the maximum number of values in JSON.
    """

    shape: tuple[int, ...] | None = None
    values: int = bounded_parsing.MAX_VALUES


def _encode_string(text: str, where: str) -> bytes:
    try:
        data = text.encode()
    except (AttributeError, UnicodeEncodeError) as error:
        raise SpecError(f"{where}: {text!r} is not a Unicode string: {error}") from None
    return _with_length(data, where)


def _encode_json(value: Any, where: str) -> bytes:
    return _with_length(bounded_parsing.encode(value, where), where)


def _read_string(reader: Reader, limit: int, where: str) -> str:
    data = _read_field(reader, limit, where)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"{where}: not UTF-8: {error}") from None


def _read_json(
    reader: Reader, limit: int, where: str, max_values: int = bounded_parsing.MAX_VALUES
) -> Any:
    return bounded_parsing.decode(_read_field(reader, limit, where), where, max_values)


def _decode_bool(byte: int, where: str) -> bool:
    if byte > 1:
        raise ProtocolError(f"{where}: byte {byte:#04x} is not a bool; expected 0 or 1")
    return byte == 1


def _check_length(length: int, limit: int, where: str) -> None:
    if length > limit:
        raise ProtocolError(f"{where}: has a length of {length} bytes; at most {limit} are allowed")


def _with_length(data: bytes, where: str) -> bytes:
    if len(data) > 0xFFFFFFFF:
        raise SpecError(f"{where}: has {len(data)} bytes; a field must be smaller than 4 GiB")
    return _U32.pack(len(data)) + data


def _read_field(reader: Reader, limit: int, where: str) -> bytes:
    (length,) = _U32.unpack(reader.read(4))
    _check_length(length, limit, where)
    return reader.read(length)


def check_limits(limits: Limits | None) -> Limits:
    """Return `limits`, or the defaults if it is None; raise SpecError for any other type."""
    expected = "a Limits of dm_env_rpc_client.bridges.gym_socket"
    arguments.instance("limits", limits, Limits, expected, none="None for the defaults")
    return Limits() if limits is None else limits


def check_dialect(dialect: str) -> None:
    """Raise SpecError if the dialect is unknown."""
    arguments.one_of("dialect", dialect, ("first", "latest"))


def encode_action(action: Any, where: str = "the action") -> bytes:
    """Return the bytes of an action given as a JSON value."""
    return bytes([_JSON]) + _encode_json(action, where)


def _read_action(reader: Reader, limit: int, where: str) -> Any:
    (kind,) = reader.read(1)
    if kind != _JSON:
        raise ProtocolError(f"unknown action type {kind}; expected 0 (JSON), the only type")
    return _read_json(reader, limit, where)


def _read_which(reader: Reader, limit: int, where: str) -> WhichSpace:
    (which,) = reader.read(1)
    if which > 1:
        raise ProtocolError(
            f"Get Space requests space {which}; expected 0 (action) or 1 (observation)"
        )
    return WhichSpace(which)


def _read_bool(reader: Reader, limit: int, where: str) -> bool:
    return _decode_bool(reader.read(1)[0], where)


def _encode_byte(value: int, where: str) -> bytes:
    return bytes([value])


class _Field(NamedTuple):
    """The functions to write and read a packet field; both receive its name for error messages."""

    encode: Callable[[Any, str], bytes]
    read: Callable[[Reader, int, str], Any]
    limit: str = "field"  # The attribute of `Limits` that applies.


_ACTION = _Field(encode_action, _read_action)
_WHICH = _Field(_encode_byte, _read_which)
_BOOL = _Field(_encode_byte, _read_bool)
_NAME = _Field(_encode_string, _read_string, "name")
_STRING = _Field(_encode_string, _read_string)
_SETTINGS = _Field(_encode_json, _read_json)

# In the order of packet numbers.
_LATEST: dict[type[Request], dict[str, _Field]] = {
    Reset: {},
    Step: {"action": _ACTION},
    GetSpace: {"which": _WHICH},
    SampleAction: {},
    Monitor: {"resume": _BOOL, "force": _BOOL, "video": _BOOL, "directory": _STRING},
    Render: {},
    Upload: {"directory": _STRING, "api_key": _STRING, "algorithm_id": _STRING},
    UniverseConfigure: {"settings": _SETTINGS},
    UniverseWrap: {"wrapper": _NAME, "settings": _SETTINGS},
}
_FIRST = {
    kind: {name: field for name, field in fields.items() if name != "video"}
    for kind, fields in list(_LATEST.items())[:7]
}
_PACKETS = {"first": list(_FIRST.items()), "latest": list(_LATEST.items())}


def encode_request(request: Request, dialect: Dialect = "first") -> bytes:
    """Return the bytes of a handshake or packet.

    Raises:
      SpecError: the dialect has no such packet, or a value does not fit its field.
    """
    if isinstance(request, Handshake):
        return b"\0" + _encode_string(request.env_name, "the environment name")
    for number, (kind, fields) in enumerate(_PACKETS[dialect]):
        if kind is type(request) and ("video" in fields or not getattr(request, "video", False)):
            data = bytes([number])
            for name, field in fields.items():
                data += field.encode(getattr(request, name), f"{kind.__name__}: {name}")
            return data
    raise SpecError(
        f"the {dialect} dialect cannot encode this request: only the latest dialect has Universe "
        "packets and the video flag of Monitor"
    )


def read_handshake(reader: Reader, limits: Limits) -> Handshake:
    """Read the first message of a client."""
    (flags,) = reader.read(1)
    if flags:
        raise ProtocolError(
            f"unknown handshake flags {flags:#04x}; expected 0, since no flags are defined"
        )
    return Handshake(_read_string(reader, limits.name, "the environment name"))


def read_request(reader: Reader, dialect: Dialect, limits: Limits) -> Request:
    """Read a packet."""
    (number,) = reader.read(1)
    kinds = _PACKETS[dialect]
    if number >= len(kinds):
        raise ProtocolError(
            f"unknown packet type {number}; the {dialect} dialect has types 0 to {len(kinds) - 1}"
        )
    kind, fields = kinds[number]
    values = {
        name: field.read(reader, getattr(limits, field.limit), f"{kind.__name__}: {name}")
        for name, field in fields.items()
    }
    return kind(**values)


def has_answer(request: Request, dialect: Dialect) -> bool:
    """Whether a packet has an answer."""
    if isinstance(request, Monitor):
        return dialect == "latest"
    return not isinstance(request, Render)


def read_answer(
    reader: Reader,
    request: Request,
    limits: Limits,
    bounds: ObservationBounds | None = None,
) -> Any:
    """Read the answer to `request`, for which `has_answer` must be true.

    Reset is answered with an observation as in `StepAnswer`, Step with a `StepAnswer`, Get Space
    and Sample Action with a JSON value, and other packets with an error string, "" for success.
    """
    bounds = bounds or ObservationBounds()
    if isinstance(request, Step):
        return _read_step_answer(reader, limits, bounds)
    if isinstance(request, Reset):
        return _read_observation(reader, limits, bounds)
    if isinstance(request, GetSpace):
        return _read_json(reader, limits.space, "the space", MAX_SPACE_VALUES)
    if isinstance(request, SampleAction):
        return _read_action(reader, limits.field, "the action")
    return _read_string(reader, limits.field, "the error message")


def encode_error(message: str) -> bytes:
    """Return an encoded error string, where "" stands for success."""
    return _encode_string(message, "the error message")


def encode_space(space: Any) -> bytes:
    """Return the encoded JSON value of a space."""
    return _encode_json(space, "the space")


def encode_observation(observation: npt.NDArray[np.uint8] | Any) -> bytes:
    """Return the bytes of an observation: a byte list for a uint8 array, otherwise JSON."""
    if not isinstance(observation, np.ndarray):
        return bytes([_JSON]) + _encode_json(observation, "the observation")
    shape = observation.shape
    header = struct.pack(f"<{1 + len(shape)}I", len(shape), *shape)
    length = len(header) + observation.size
    if observation.dtype != np.uint8 or length > 0xFFFFFFFF:
        raise SpecError(
            f"a byte list must be uint8 and smaller than 4 GiB, got {observation.dtype} {shape}"
        )
    return _KIND_AND_LENGTH.pack(_BYTE_LIST, length) + header + observation.tobytes()


def encode_step_answer(
    observation: npt.NDArray[np.uint8] | Any, reward: float, done: bool, info: Any
) -> bytes:
    """Return the encoded answer to a Step packet, given the fields of a `StepAnswer`."""
    data = bounded_parsing.encode(info, "the info")
    tail = _STEP_TAIL.pack(reward, done, len(data))
    return encode_observation(observation) + tail + data


def _read_observation(reader: Reader, limits: Limits, bounds: ObservationBounds) -> Any:
    kind, length = _KIND_AND_LENGTH.unpack(reader.read(5))
    if kind == _JSON:
        _check_length(length, limits.field, "the observation")
        return bounded_parsing.decode(reader.read(length), "the observation", bounds.values)
    if kind != _BYTE_LIST:
        raise ProtocolError(f"unknown observation type {kind}; expected 0 (JSON) or 1 (byte list)")
    return _read_byte_list(reader, length, limits, bounds.shape)


def _read_byte_list(
    reader: Reader, length: int, limits: Limits, expected: tuple[int, ...] | None
) -> npt.NDArray[np.uint8]:
    limit = limits.field if expected is None else 4 + 4 * len(expected) + math.prod(expected)
    _check_length(length, limit, "the byte list")
    if length < 4:
        raise ProtocolError(f"a byte list of {length} bytes is too short to state its dimensions")
    (dimensions,) = _U32.unpack(reader.read(4))
    if dimensions > MAX_DIMENSIONS or length < 4 + 4 * dimensions:
        raise ProtocolError(f"a byte list of {length} bytes cannot have {dimensions} dimensions")
    shape = struct.unpack(f"<{dimensions}I", reader.read(4 * dimensions))
    if expected is not None and shape != expected:
        raise ProtocolError(
            f"a byte list has shape {list(shape)}; expected {list(expected)}, the space's shape"
        )
    size = math.prod(shape)
    if length != 4 + 4 * dimensions + size:
        raise ProtocolError(
            f"a byte list of shape {list(shape)} has {length - 4 - 4 * dimensions} bytes of data; "
            f"expected {size}"
        )
    try:
        array = np.empty(shape, np.uint8)
    except ValueError as error:  # NumPy rejects [0, 2**32 - 1, 2**32 - 1], despite 0 elements.
        raise ProtocolError(f"a byte list has the invalid shape {list(shape)}: {error}") from None
    reader.read_into(array.reshape(-1).data)
    return array


def _read_step_answer(reader: Reader, limits: Limits, bounds: ObservationBounds) -> StepAnswer:
    observation = _read_observation(reader, limits, bounds)
    reward, done, length = _STEP_TAIL.unpack(reader.read(13))
    is_done = _decode_bool(done, "done")
    _check_length(length, limits.field, "the info")
    info = bounded_parsing.decode(reader.read(length), "the info")
    return StepAnswer(observation, reward, is_done, info)
