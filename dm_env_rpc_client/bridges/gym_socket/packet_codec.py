"""The packets of gym-socket-api as bytes: both directions and both dialects, without I/O.

The `encode_...` functions return whole messages. The `read_...` functions return `Steps`,
which read a message from bytes in pieces of any size.

Integers are little endian, strings UTF-8, booleans a byte that is 0 or 1, floats IEEE 754.
A client sends the next packet only after the answer to the one before ("Command packets" in
the protocol document). Whether a packet has an answer depends on the dialect alone: see
`read_answer`.

Dialects: "first" is the one of the protocol document. In "latest" Monitor has a flag `video`
and an answer, and there are two more packets, for Universe.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from dm_env_rpc_client.bridges import bounded_json
from dm_env_rpc_client.bridges.gym_socket.fields import (
    Limits,
    ObservationBounds,
    Steps,
    check_length,
    decode_bool,
    encode_json,
    encode_string,
    read_bool,
    read_json,
    read_string,
)
from dm_env_rpc_client.bridges.gym_socket.packets import (
    GetSpace,
    Handshake,
    Monitor,
    Render,
    Request,
    Reset,
    SampleAction,
    Step,
    StepAnswer,
    UniverseConfigure,
    UniverseWrap,
    Upload,
    WhichSpace,
)
from dm_env_rpc_client.errors import ProtocolError, SpecError

__all__ = [
    "MAX_SPACE_VALUES",
    "Dialect",
    "check_dialect",
    "encode_action",
    "encode_error",
    "encode_observation",
    "encode_request",
    "encode_space",
    "encode_step_answer",
    "read_answer",
    "read_error",
    "read_handshake",
    "read_request",
]

Dialect: TypeAlias = Literal["first", "latest"]

_KIND_AND_LENGTH = struct.Struct("<BI")
_U32 = struct.Struct("<I")
_STEP_TAIL = struct.Struct("<dBI")
_JSON = 0
_BYTE_LIST = 1
_MAX_DIMENSIONS = 32

MAX_SPACE_VALUES = 1 << 18
"""Values in the JSON of a space; two for each element of its boxes."""


def check_dialect(dialect: str) -> None:
    """Raises SpecError if there is no such dialect."""
    if dialect not in ("first", "latest"):
        raise SpecError(f"gym-socket-api has no dialect {dialect!r}; choose 'first' or 'latest'")


def encode_request(request: Handshake | Request, dialect: Dialect = "first") -> bytes:
    """Returns the bytes of a handshake or packet.

    Raises:
      SpecError: the dialect has no such packet, or a value does not fit its field.
    """
    if isinstance(request, Handshake):
        return b"\0" + encode_string(request.env_name, "the environment name")
    if dialect == "first":
        if isinstance(request, UniverseConfigure | UniverseWrap):
            raise SpecError("only the latest dialect has packets for Universe")
        if isinstance(request, Monitor) and request.video:
            raise SpecError("only the latest dialect has video in Monitor")
    return bytes([_NUMBERS[type(request)]]) + _ENCODERS[type(request)](request, dialect)


def read_handshake(limits: Limits) -> Steps[Handshake]:
    """Reads the first message of a client."""
    (flags,) = yield 1
    if flags:
        raise ProtocolError(f"handshake flags {flags:#04x}; expected 0, since no flags are defined")
    return Handshake((yield from read_string(limits.name, "the environment name")))


def read_request(dialect: Dialect, limits: Limits) -> Steps[Request]:
    """Reads a packet."""
    (number,) = yield 1
    readers = _READERS if dialect == "latest" else _READERS[:7]
    if number >= len(readers):
        raise ProtocolError(
            f"packet type {number}; the {dialect} dialect has 0 to {len(readers) - 1}"
        )
    return (yield from readers[number](dialect, limits))


def _encode_monitor(request: Monitor, dialect: Dialect) -> bytes:
    flags = [request.resume, request.force]
    if dialect == "latest":
        flags.append(request.video)
    return bytes(flags) + encode_string(request.directory, "the monitor directory")


def _encode_upload(request: Upload, dialect: Dialect) -> bytes:
    return (
        encode_string(request.directory, "the upload directory")
        + encode_string(request.api_key, "the API key")
        + encode_string(request.algorithm_id, "the algorithm id")
    )


def _encode_wrap(request: UniverseWrap, dialect: Dialect) -> bytes:
    return encode_string(request.wrapper, "the wrapper name") + encode_json(
        request.settings, "the wrapper settings"
    )


_NUMBERS: dict[type, int] = {
    kind: number
    for number, kind in enumerate(
        (Reset, Step, GetSpace, SampleAction, Monitor, Render, Upload, UniverseConfigure,
         UniverseWrap)
    )
}  # fmt: skip

_ENCODERS: dict[type, Callable[[Any, Dialect], bytes]] = {
    Reset: lambda request, dialect: b"",
    Step: lambda request, dialect: encode_action(request.action),
    GetSpace: lambda request, dialect: bytes([request.which]),
    SampleAction: lambda request, dialect: b"",
    Monitor: _encode_monitor,
    Render: lambda request, dialect: b"",
    Upload: _encode_upload,
    UniverseConfigure: lambda request, dialect: encode_json(
        request.settings, "the Universe settings"
    ),
    UniverseWrap: _encode_wrap,
}


def _read_bare(message: Request) -> Callable[[Dialect, Limits], Steps[Request]]:
    def read(dialect: Dialect, limits: Limits) -> Steps[Request]:
        yield 0
        return message

    return read


def _read_step(dialect: Dialect, limits: Limits) -> Steps[Request]:
    return Step((yield from _read_action(limits)))


def _read_get_space(dialect: Dialect, limits: Limits) -> Steps[Request]:
    (which,) = yield 1
    if which > 1:
        raise ProtocolError(f"Get Space asks for space {which}; expected 0 (action) or 1")
    return GetSpace(WhichSpace(which))


def _read_monitor(dialect: Dialect, limits: Limits) -> Steps[Request]:
    resume = yield from read_bool("Monitor: resume")
    force = yield from read_bool("Monitor: force")
    video = dialect == "latest" and (yield from read_bool("Monitor: video"))
    directory = yield from read_string(limits.field, "the monitor directory")
    return Monitor(directory, resume, force, video)


def _read_upload(dialect: Dialect, limits: Limits) -> Steps[Request]:
    directory = yield from read_string(limits.field, "the upload directory")
    api_key = yield from read_string(limits.field, "the API key")
    return Upload(directory, api_key, (yield from read_string(limits.field, "the algorithm id")))


def _read_configure(dialect: Dialect, limits: Limits) -> Steps[Request]:
    return UniverseConfigure((yield from read_json(limits.field, "the Universe settings")))


def _read_wrap(dialect: Dialect, limits: Limits) -> Steps[Request]:
    wrapper = yield from read_string(limits.name, "the wrapper name")
    return UniverseWrap(wrapper, (yield from read_json(limits.field, "the wrapper settings")))


_READERS: tuple[Callable[[Dialect, Limits], Steps[Request]], ...] = (
    _read_bare(Reset()), _read_step, _read_get_space, _read_bare(SampleAction()), _read_monitor,
    _read_bare(Render()), _read_upload, _read_configure, _read_wrap,
)  # fmt: skip


def read_answer(
    request: Request,
    dialect: Dialect,
    limits: Limits,
    bounds: ObservationBounds | None = None,
) -> Steps[Any] | None:
    """Returns the `Steps` that read the answer to a request; None if it has no answer.

    The answer to Reset is an observation as in `StepAnswer`, to Step a `StepAnswer`, to Get
    Space and Sample Action a JSON value, and to the others an error string, "" for success.
    """
    reader = _ANSWERS[type(request)]
    if reader is None or (isinstance(request, Monitor) and dialect == "first"):
        return None
    return reader(limits, bounds or ObservationBounds())


def read_error(limits: Limits) -> Steps[str]:
    """Reads an error string, "" for success, such as the answer to a handshake."""
    return read_string(limits.field, "the error message")


def encode_error(message: str) -> bytes:
    """Returns an error string; "" is success."""
    return encode_string(message, "the error message")


def encode_space(space: Any) -> bytes:
    """Returns the JSON value of a space."""
    return encode_json(space, "the space")


def encode_action(action: Any) -> bytes:
    """Returns the bytes of an action, which is a JSON value."""
    return bytes([_JSON]) + encode_json(action, "the action")


def encode_observation(observation: npt.NDArray[np.uint8] | Any) -> bytes:
    """Returns an observation: a byte list of a uint8 array, JSON of any other value."""
    if not isinstance(observation, np.ndarray):
        return bytes([_JSON]) + encode_json(observation, "the observation")
    shape = observation.shape
    header = struct.pack(f"<{1 + len(shape)}I", len(shape), *shape)
    length = len(header) + observation.size
    if observation.dtype != np.uint8 or length > 0xFFFFFFFF:
        raise SpecError(f"a byte list is uint8 and below 4 GiB, got {observation.dtype} {shape}")
    return _KIND_AND_LENGTH.pack(_BYTE_LIST, length) + header + observation.tobytes()


def encode_step_answer(
    observation: npt.NDArray[np.uint8] | Any, reward: float, done: bool, info: Any
) -> bytes:
    """Returns the answer to a Step; the arguments are as in `StepAnswer`."""
    data = bounded_json.encode(info, "the info")
    tail = _STEP_TAIL.pack(reward, done, len(data))
    return encode_observation(observation) + tail + data


def _read_error_answer(limits: Limits, bounds: ObservationBounds) -> Steps[str]:
    return read_error(limits)


def _read_action(limits: Limits) -> Steps[Any]:
    (kind,) = yield 1
    if kind != _JSON:
        raise ProtocolError(f"action type {kind}; expected 0 (JSON), the only one")
    return (yield from read_json(limits.field, "the action"))


def _read_action_answer(limits: Limits, bounds: ObservationBounds) -> Steps[Any]:
    return (yield from _read_action(limits))


def _read_space(limits: Limits, bounds: ObservationBounds) -> Steps[Any]:
    return (yield from read_json(limits.space, "the space", MAX_SPACE_VALUES))


def _read_observation(limits: Limits, bounds: ObservationBounds) -> Steps[Any]:
    kind, length = _KIND_AND_LENGTH.unpack((yield 5))
    if kind == _JSON:
        check_length(length, limits.field, "the observation")
        data = yield length
        return bounded_json.decode(data, "the observation", bounds.values)
    if kind != _BYTE_LIST:
        raise ProtocolError(f"observation type {kind}; expected 0 (JSON) or 1 (byte list)")
    return (yield from _read_byte_list(length, limits, bounds.shape))


def _read_byte_list(
    length: int, limits: Limits, expected: tuple[int, ...] | None
) -> Steps[npt.NDArray[np.uint8]]:
    limit = limits.field if expected is None else 4 + 4 * len(expected) + math.prod(expected)
    check_length(length, limit, "the byte list")
    if length < 4:
        raise ProtocolError(f"a byte list of {length} bytes has no number of dimensions")
    (dimensions,) = _U32.unpack((yield 4))
    if dimensions > _MAX_DIMENSIONS or length < 4 + 4 * dimensions:
        raise ProtocolError(f"a byte list of {length} bytes with {dimensions} dimensions")
    shape = struct.unpack(f"<{dimensions}I", (yield 4 * dimensions))
    if expected is not None and shape != expected:
        raise ProtocolError(
            f"a byte list of shape {list(shape)}; expected {list(expected)}, the space's shape"
        )
    size = math.prod(shape)
    if length != 4 + 4 * dimensions + size:
        raise ProtocolError(
            f"a byte list of shape {list(shape)} has {length - 4 - 4 * dimensions} bytes of data; "
            f"expected {size}"
        )
    try:
        array = np.empty(shape, np.uint8)
    except ValueError as error:  # [0, 2**32 - 1, 2**32 - 1] has no elements, and NumPy refuses it.
        raise ProtocolError(f"a byte list of shape {list(shape)}: {error}") from None
    if size:
        yield array.reshape(-1).data
    return array


def _read_step_answer(limits: Limits, bounds: ObservationBounds) -> Steps[StepAnswer]:
    observation = yield from _read_observation(limits, bounds)
    reward, done, length = _STEP_TAIL.unpack((yield 13))
    is_done = decode_bool(done, "done")
    check_length(length, limits.field, "the info")
    info = bounded_json.decode((yield length), "the info")
    return StepAnswer(observation, reward, is_done, info)


_ANSWERS: dict[type, Callable[[Limits, ObservationBounds], Steps[Any]] | None] = {
    Reset: _read_observation,
    Step: _read_step_answer,
    GetSpace: _read_space,
    SampleAction: _read_action_answer,
    Monitor: _read_error_answer,
    Render: None,
    Upload: _read_error_answer,
    UniverseConfigure: _read_error_answer,
    UniverseWrap: _read_error_answer,
}
