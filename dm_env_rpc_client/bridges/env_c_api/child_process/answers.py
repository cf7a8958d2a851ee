"""The answers of the child process as JSON values: made by field, and checked by annotation.

A library may have written the answer in place of the child, so nothing in it is trusted. What
the annotation `Any` stands for is an observation: an array or a string.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import typing
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from dm_env_rpc_client.bridges.env_c_api.context import Status
from dm_env_rpc_client.bridges.env_c_api.description import Description
from dm_env_rpc_client.bridges.env_c_api.runner import Frame
from dm_env_rpc_client.errors import (
    DmEnvRpcClientError,
    LibraryError,
    PropertyError,
    ProtocolError,
    SpecError,
)

T = TypeVar("T")

_PLAIN = frozenset((str, int, float, bool, type(None), np.ndarray))


def encode(value: Any) -> Any:
    """Returns a result for a message: records as lists of their fields, mappings as pairs."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, (list, tuple)):
        return [encode(each) for each in value]
    if isinstance(value, enum.Flag):
        return value.value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, dict):
        return [[key, encode(each)] for key, each in value.items()]
    if dataclasses.is_dataclass(value):
        return [encode(getattr(value, field.name)) for field in dataclasses.fields(value)]
    raise TypeError(f"there is no encoding for {value!r}")


def decode(type_: type[T], message: Any) -> T:
    """Reverses `encode`; ProtocolError if the message is not of the type."""
    try:
        decoded: T = _decoder(type_)(message)  # type: ignore[arg-type]  # types are hashable
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        raise ProtocolError(f"the child process sent an invalid answer: {error}") from error
    return decoded


def decode_answer(type_: type[T], answer: Any) -> T | DmEnvRpcClientError:
    """Returns the result or the error in an answer; ProtocolError if it is invalid."""
    if isinstance(answer, dict) and answer.keys() == {"error"}:
        return decode_error(answer["error"])
    if isinstance(answer, dict) and answer.keys() == {"result"}:
        return decode(type_, answer["result"])
    raise ProtocolError("the child process sent an invalid answer")


def check_frame(frame: Frame, description: Description) -> None:
    """Raises ProtocolError if a frame does not fit the description."""
    expected = description.observations if frame.status is Status.RUNNING else None
    if expected is None or frame.observations is None:
        fits = expected is None and frame.observations is None
    else:
        fits = len(frame.observations) == len(expected) and all(
            described.value_conforms(value)
            for described, value in zip(expected, frame.observations, strict=True)
        )
    if not fits:
        raise ProtocolError("the child process sent observations that do not fit the specs")
    for event in frame.events:
        if description.events[event.id : event.id + 1] != (event.name,):
            raise ProtocolError(f"the child process sent an event of unknown type {event.id}")


def encode_error(error: Exception) -> Any:
    """Returns an error for a message."""
    if isinstance(error, PropertyError):
        return ["PropertyError", [error.operation, error.key, error.code_name]]
    if isinstance(error, LibraryError):
        return ["LibraryError", list(error.args)]
    for known in (SpecError, ProtocolError):
        if isinstance(error, known):
            return [known.__name__, [str(error)]]
    return ["DmEnvRpcClientError", [f"{type(error).__name__}: {error}"]]


def decode_error(message: Any) -> DmEnvRpcClientError:
    """Reverses `encode_error`; ProtocolError if the message is invalid."""
    try:
        name, arguments = message
        make, *types = _ERRORS[name]
        decoded = [decode(*each) for each in zip(types, arguments, strict=True)]
        error: DmEnvRpcClientError = make(*decoded)
        str(error)  # Composed here, where it may fail.
    except (ValueError, TypeError, LookupError) as invalid:
        raise ProtocolError(f"the child process sent an invalid answer: {invalid}") from invalid
    return error


_ERRORS: dict[str, tuple[Any, ...]] = {
    "LibraryError": (LibraryError, str, int, str),
    "PropertyError": (PropertyError.of_result, str, str, str),
    "SpecError": (SpecError, str),
    "ProtocolError": (ProtocolError, str),
    "DmEnvRpcClientError": (DmEnvRpcClientError, str),
}


@functools.cache
def _decoder(type_: Any) -> Callable[[Any], Any]:
    """Returns what checks and converts the JSON values of a type."""
    origin, arguments = typing.get_origin(type_), typing.get_args(type_)
    if type(None) in arguments:
        given = _decoder(arguments[0])
        return lambda message: None if message is None else given(message)
    if origin is dict:
        decode_key, decode_value = map(_decoder, arguments)
        return lambda message: {decode_key(key): decode_value(value) for key, value in message}
    if origin in (list, tuple):
        element = _decoder(arguments[0])
        return lambda message: origin([element(each) for each in _checked(list, message)])
    if dataclasses.is_dataclass(type_) or hasattr(type_, "_fields"):
        fields = [_decoder(hint) for hint in typing.get_type_hints(type_).values()]
        return lambda message: type_(
            *[field(value) for field, value in zip(fields, message, strict=True)]
        )
    if isinstance(type_, type) and issubclass(type_, enum.Flag):
        return lambda message: type_(_checked(int, message))
    if isinstance(type_, type) and issubclass(type_, enum.Enum):
        return lambda message: type_[message]
    expected = (str, np.ndarray) if type_ is Any else type_
    return lambda message: _checked(expected, message)


def _checked(type_: Any, value: Any) -> Any:
    if isinstance(value, type_) and (type(value) is not bool or type_ is bool):
        return value
    raise TypeError(f"expected {type_}, got {value!r}")
