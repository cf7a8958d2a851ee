"""Copies from the memory of a library. Sizes are checked before memory is read.

Every pointer is valid only until the next call into the library, so nothing here keeps
one. A pointer that is not null may still be invalid; only a child process protects against
that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dm_env_rpc_client.bridges.env_c_api.declarations import Layout
from dm_env_rpc_client.bridges.env_c_api.description import ObservationType, checked_size
from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.tensors.casting import MAX_DIMENSIONS

UNSET = -(2**31)
"""The initial value of fields that the library fills in; it shows which ones it did not."""


def copy_text(ffi: Any, pointer: Any, most: int, where: str) -> str:
    """Copies a null-terminated string of at most `most` bytes.

    Raises:
      ProtocolError: it is null, longer, or not UTF-8.
    """
    if not pointer:
        raise ProtocolError(f"{where}: is null; the interface allows no null strings")
    data: bytes = ffi.string(pointer, most + 1)
    if len(data) > most:
        raise ProtocolError(f"{where}: has no end within {most} bytes (Limits)")
    return _decode(data, where)


def encode(text: str, where: str) -> bytes:
    """Encodes a string for C; SpecError if it contains a null or is invalid as UTF-8."""
    if "\0" in text:
        raise SpecError(f"{where}: {text!r} contains a null character, which would end it in C")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise SpecError(f"{where}: {text!r} is invalid as UTF-8: {error}") from error


def _decode(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"{where}: is not UTF-8: {error}") from error


def known_type(layout: Layout, number: int, where: str) -> ObservationType:
    """Returns the type with a number; ProtocolError if this version has no such type."""
    type_ = layout.observation_types.get(number)
    if type_ is None:
        raise ProtocolError(
            f"{where}: has type {number}, which version {layout.version} does not have; the "
            "library is broken or was compiled with another version"
        )
    return type_


def read_shape(ffi: Any, spec: Any, where: str) -> tuple[int, ...]:
    """Copies the shape of an EnvCApi_ObservationSpec with 0 or more dimensions."""
    dims = spec.dims
    if dims == UNSET:
        raise ProtocolError(f"{where}: the library did not fill it in")
    if not 0 <= dims <= MAX_DIMENSIONS:
        raise ProtocolError(f"{where}: has {dims} dimensions; expected 0 to {MAX_DIMENSIONS}")
    if not dims:
        return ()
    if not spec.shape:
        raise ProtocolError(f"{where}: has {dims} dimensions and a null shape")
    return tuple(ffi.unpack(spec.shape, dims))


def copy_observation(layout: Layout, observation: Any, budget: int, most: int, where: str) -> Any:
    """Copies an observation of any type and shape.

    Args:
      layout: the version.
      observation: the EnvCApi_Observation.
      budget: its maximum size in bytes; what those before it have left of `most`.
      most: the maximum size of all observations together.
      where: the name of the observation in error messages.

    Returns:
      A new writable array, or a `str`.

    Raises:
      ProtocolError: it breaks the interface or exceeds the limits.
    """
    ffi, spec, pointer = layout.ffi, observation.spec, observation.payload.bytes
    shape = read_shape(ffi, spec, where)
    type_ = known_type(layout, spec.type, where)
    is_text = type_ is ObservationType.STRING
    if is_text and len(shape) != 1:
        raise ProtocolError(f"{where}: is a string with shape {list(shape)}; expected [length]")
    size = checked_size(shape, type_.item_bytes, most, where)
    if size > budget:
        raise ProtocolError(
            f"{where}: takes {size} bytes; together with those before it the step exceeds {most} "
            "(Limits.message_bytes)"
        )
    if size and not pointer:
        raise ProtocolError(f"{where}: has shape {list(shape)} and a null payload")
    if is_text:
        return _decode(ffi.buffer(pointer, size)[:] if size else b"", where)
    if not size:
        return np.empty(shape, type_.value)
    return np.frombuffer(ffi.buffer(pointer, size), type_.value).reshape(shape).copy()


def size_of(value: Any) -> int:
    """Returns how much of a budget a copied observation takes."""
    return len(value) if isinstance(value, str) else int(value.nbytes)
