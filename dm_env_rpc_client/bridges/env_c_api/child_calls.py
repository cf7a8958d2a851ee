"""The contents of the messages between the two processes: calls, answers and errors.

A call is `[name, *arguments]`. An answer is `{"result": ...}` or `{"error": [class, args]}`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from dm_env_rpc_client.bridges.env_c_api.context import Status
from dm_env_rpc_client.bridges.env_c_api.description import (
    BoundedAction,
    Description,
    ObservationDescription,
    ObservationType,
)
from dm_env_rpc_client.bridges.env_c_api.events import Event
from dm_env_rpc_client.bridges.env_c_api.library_properties import (
    PropertyAttributes,
)
from dm_env_rpc_client.bridges.env_c_api.runner import Frame
from dm_env_rpc_client.errors import (
    DmEnvRpcClientError,
    LibraryError,
    PropertyError,
    ProtocolError,
    SpecError,
)

__all__ = [
    "decode_description",
    "decode_error",
    "decode_frame",
    "decode_properties",
    "decode_text",
    "encode_description",
    "encode_error",
    "encode_frame",
    "encode_properties",
]

T = TypeVar("T")


def encode_description(description: Description) -> Any:
    """Returns a description for a message."""
    return [
        description.name,
        [list(action) for action in description.discrete],
        [list(action) for action in description.continuous],
        list(description.texts),
        [[o.name, o.type.name, o.shape, o.is_given] for o in description.observations],
        list(description.events),
        description.fps,
    ]


def decode_description(message: Any) -> Description:
    """Reverses `encode_description`; ProtocolError if the message is invalid."""

    def decode() -> Description:
        name, discrete, continuous, texts, observations, events, fps = message
        return Description(
            name=_is(str, name),
            discrete=tuple(
                BoundedAction(_is(str, n), _is(int, a), _is(int, b)) for n, a, b in discrete
            ),
            continuous=tuple(
                BoundedAction(_is(str, n), _is(float, a), _is(float, b)) for n, a, b in continuous
            ),
            texts=tuple(_is(str, text) for text in texts),
            observations=tuple(
                ObservationDescription(
                    _is(str, n),
                    ObservationType[t],
                    None if shape is None else tuple(_is(int, size) for size in shape),
                    is_given is True,
                )
                for n, t, shape, is_given in observations
            ),
            events=tuple(_is(str, event) for event in events),
            fps=None if fps is None else _is(int, fps),
        )

    return _checked(decode)


def encode_frame(frame: Frame) -> Any:
    """Returns a frame for a message."""
    events = [[event.id, list(event.observations)] for event in frame.events]
    return [int(frame.status), frame.reward, frame.observations, events]


def decode_frame(message: Any, description: Description) -> Frame:
    """Reverses `encode_frame`; ProtocolError if it does not fit the description."""

    def decode() -> Frame:
        status, reward, observations, events = message
        names = dict(enumerate(description.events))
        expected = description.observations if status == Status.RUNNING else None
        if expected is None:
            fits = observations is None
        else:
            fits = len(observations) == len(expected) and all(
                described.value_conforms(value)
                for described, value in zip(expected, observations, strict=True)
            )
        if not fits:
            raise ValueError("the observations do not fit the specs")
        return Frame(
            Status(status),
            _is(float, reward),
            observations,
            tuple(
                Event(
                    _is(int, id_),
                    names[id_],
                    tuple(_is((str, np.ndarray), value) for value in values),
                )
                for id_, values in events
            ),
        )

    return _checked(decode)


def encode_properties(properties: dict[str, PropertyAttributes]) -> Any:
    """Returns listed properties for a message."""
    return [[key, attributes.value] for key, attributes in properties.items()]


def decode_properties(message: Any) -> dict[str, PropertyAttributes]:
    """Reverses `encode_properties`; ProtocolError if the message is invalid."""
    return _checked(lambda: {_is(str, k): PropertyAttributes(_is(int, a)) for k, a in message})


def decode_text(message: Any) -> str:
    """Returns a message that is a string; ProtocolError if it is not."""
    return _checked(lambda: str(_is(str, message)))


def encode_error(error: Exception) -> Any:
    """Returns an error for a message."""
    if isinstance(error, LibraryError):
        return ["LibraryError", [error.function, error.code, error.message]]
    if isinstance(error, PropertyError):
        return ["PropertyError", [error.operation, error.key, error.code_name]]
    for known in (SpecError, ProtocolError):
        if isinstance(error, known):
            return [known.__name__, [str(error)]]
    return ["DmEnvRpcClientError", [f"{type(error).__name__}: {error}"]]


def decode_error(message: Any) -> DmEnvRpcClientError:
    """Reverses `encode_error`; ProtocolError if the message is invalid."""

    def decode() -> DmEnvRpcClientError:
        name, arguments = message
        error = _ERRORS[name](*arguments)
        str(error)  # Composed here, where it may fail.
        return error

    return _checked(decode)


def _library_error(function: Any, code: Any, message: Any) -> LibraryError:
    return LibraryError(_is(str, function), _is(int, code), _is(str, message))


def _property_error(operation: Any, key: Any, result: Any) -> PropertyError:
    return PropertyError.of_result(_is(str, operation), _is(str, key), result)


def _with_text(type_: type[DmEnvRpcClientError]) -> Callable[[Any], DmEnvRpcClientError]:
    return lambda text: type_(_is(str, text))


_ERRORS: dict[str, Callable[..., DmEnvRpcClientError]] = {
    "LibraryError": _library_error,
    "PropertyError": _property_error,
    "SpecError": _with_text(SpecError),
    "ProtocolError": _with_text(ProtocolError),
    "DmEnvRpcClientError": _with_text(DmEnvRpcClientError),
}


def _is(type_: Any, value: Any) -> Any:
    if not isinstance(value, type_) or isinstance(value, bool):
        raise TypeError(f"expected {type_}, got {value!r}")
    return value


def _checked(decode: Callable[[], T]) -> T:
    try:
        return decode()
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        raise ProtocolError(f"the child process sent an invalid answer: {error}") from error
