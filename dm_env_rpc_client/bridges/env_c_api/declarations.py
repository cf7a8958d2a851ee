"""The layout of each EnvCApi version for cffi in ABI mode, and functions to copy library memory.

Versions are not binary compatible, and the struct does not contain its version, so the caller must
specify it. Version 2.0 removed the deprecated functions `fps` and `act`, version 2.1 added integer
observations, and version 2.2 has the same layout as 2.1.

Enumerations are declared as plain ints, because a library can return any number. Each number is
validated before it is converted to an enumeration.

Sizes are checked before memory is read. Every pointer is valid only until the next call into the
library, so no pointer is kept beyond a call. A pointer that is not null can still be invalid, and
only a child process protects against invalid pointers.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from dm_env_rpc_client.bridges.env_c_api.description import ObservationType, checked_size
from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.extras import importing
from dm_env_rpc_client.tensors.casting import MAX_DIMENSIONS

VERSIONS = ("1.4", "2.0", "2.1", "2.2")
"""The supported versions of EnvCApi."""

_STRUCTS = """
typedef struct { int type; int dims; const int* shape; } EnvCApi_ObservationSpec;
typedef struct {
  EnvCApi_ObservationSpec spec;
  union {
    const double* doubles;
    const unsigned char* bytes;
    const char* string;
    const int32_t* int32s;
    const int64_t* int64s;
  } payload;
} EnvCApi_Observation;
typedef struct {
  int id;
  int observation_count;
  const EnvCApi_Observation* observations;
} EnvCApi_Event;
typedef struct { const char* data; uint64_t len; } EnvCApi_TextAction;
typedef void (*EnvCApi_PropertyCallback)(void* userdata, const char* key, int attributes);
"""

# In the order of the struct in 1.4.
_FUNCTIONS = (
    "int (*setting)(void*, const char* key, const char* value);",
    "int (*init)(void*);",
    "int (*start)(void*, int episode_id, int seed);",
    "void (*release_context)(void*);",
    "const char* (*error_message)(void*);",
    "int (*write_property)(void*, const char* key, const char* value);",
    "int (*read_property)(void*, const char* key, const char** value);",
    "int (*list_property)(void*, void* userdata, const char* key, EnvCApi_PropertyCallback);",
    "const char* (*environment_name)(void*);",
    "int (*action_discrete_count)(void*);",
    "int (*action_continuous_count)(void*);",
    "int (*action_text_count)(void*);",
    "const char* (*action_discrete_name)(void*, int index);",
    "const char* (*action_continuous_name)(void*, int index);",
    "const char* (*action_text_name)(void*, int index);",
    "void (*action_discrete_bounds)(void*, int index, int* minimum, int* maximum);",
    "void (*action_continuous_bounds)(void*, int index, double* minimum, double* maximum);",
    "int (*observation_count)(void*);",
    "const char* (*observation_name)(void*, int index);",
    "void (*observation_spec)(void*, int index, EnvCApi_ObservationSpec*);",
    "int (*event_type_count)(void*);",
    "const char* (*event_type_name)(void*, int index);",
    "int (*fps)(void*);",
    "void (*observation)(void*, int index, EnvCApi_Observation*);",
    "int (*event_count)(void*);",
    "void (*event)(void*, int index, EnvCApi_Event*);",
    "void (*act)(void*, const int discrete[], const double continuous[]);",
    "void (*act_discrete)(void*, const int actions[]);",
    "void (*act_continuous)(void*, const double actions[]);",
    "void (*act_text)(void*, const EnvCApi_TextAction actions[]);",
    "int (*advance)(void*, int num_steps, double* reward);",
)

_ONLY_1_4 = re.compile(r"\(\*(fps|act)\)")

_TYPES_1_4 = MappingProxyType(
    {0: ObservationType.DOUBLES, 1: ObservationType.BYTES, 2: ObservationType.STRING}
)
_TYPES_2_1 = MappingProxyType({**_TYPES_1_4, 3: ObservationType.INT32S, 4: ObservationType.INT64S})


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """The layout of one version of EnvCApi.

    Attributes:
      version: the version, such as "1.4".
      functions: the names of the function pointers, in the order of the struct.
      observation_types: the types of observations by their number in C.
      ffi: a `cffi.FFI` with the structs of this version.
      size: the size of the struct of function pointers, in bytes.
    """

    version: str
    functions: tuple[str, ...]
    observation_types: Mapping[int, ObservationType]
    ffi: Any
    size: int


def header(version: str) -> str:
    """Return the C declarations of an EnvCApi version, for compiling an engine or a test.

    Raises:
      SpecError: the version is unknown.
    """
    return f"#pragma once\n#include <stdint.h>\n{_declarations(version)}"


@functools.cache
def layout(version: str) -> Layout:
    """Return the layout of an EnvCApi version.

    Raises:
      SpecError: the version is unknown.
      ModuleNotFoundError: cffi is not installed; the text explains how to install it.
    """
    declarations = _declarations(version)
    with importing("c", "libraries with the C interface need"):
        import cffi
    ffi = cffi.FFI()
    ffi.cdef(declarations)
    return Layout(
        version=version,
        functions=tuple(name for name, _ in ffi.typeof("EnvCApi").fields),
        observation_types=_TYPES_1_4 if version in ("1.4", "2.0") else _TYPES_2_1,
        ffi=ffi,
        size=ffi.sizeof("EnvCApi"),
    )


def _declarations(version: str) -> str:
    if version not in VERSIONS:
        raise SpecError(
            f"unknown EnvCApi version {version!r}; pass the version of env_c_api.h with which the "
            f"library was compiled: one of {', '.join(VERSIONS)}"
        )
    functions = [text for text in _FUNCTIONS if version == "1.4" or not _ONLY_1_4.search(text)]
    members = "\n  ".join(functions)
    return f"{_STRUCTS}typedef struct {{\n  {members}\n}} EnvCApi;\n"


UNSET = -(2**31)
"""The initial value of output fields, which reveals fields that the library did not fill in."""


def copy_text(ffi: Any, pointer: Any, most: int, where: str) -> str:
    """Copy a null-terminated string of at most `most` bytes.

    Raises:
      ProtocolError: the string is null, too long, or not UTF-8.
    """
    if not pointer:
        raise ProtocolError(f"{where} is null; the interface does not allow null strings")
    data: bytes = ffi.string(pointer, most + 1)
    if len(data) > most:
        raise ProtocolError(f"{where} does not end within {most} bytes (Limits)")
    return _decode(data, where)


def encode(text: str, where: str) -> bytes:
    """Encode a string for C, or raise SpecError if it contains a null or is not valid UTF-8."""
    if "\0" in text:
        raise SpecError(
            f"{where}: {text!r} contains a null character, which would end the string in C"
        )
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise SpecError(f"{where}: {text!r} cannot be encoded as UTF-8: {error}") from error


def _decode(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"{where} is not valid UTF-8: {error}") from error


def known_type(layout: Layout, number: int, where: str) -> ObservationType:
    """Return the type with a number, or raise ProtocolError if the version has no such type."""
    type_ = layout.observation_types.get(number)
    if type_ is None:
        raise ProtocolError(
            f"{where} has type {number}, which does not exist in version {layout.version}; the "
            "library is broken or was compiled with another version"
        )
    return type_


def read_shape(ffi: Any, spec: Any, where: str) -> tuple[int, ...]:
    """Copy the shape of an EnvCApi_ObservationSpec with 0 or more dimensions."""
    dims = spec.dims
    if dims == UNSET:
        raise ProtocolError(f"the library did not fill in {where}")
    if not 0 <= dims <= MAX_DIMENSIONS:
        raise ProtocolError(f"{where} has {dims} dimensions; expected 0 to {MAX_DIMENSIONS}")
    if not dims:
        return ()
    if not spec.shape:
        raise ProtocolError(f"{where} has {dims} dimensions, but its shape is null")
    return tuple(ffi.unpack(spec.shape, dims))


def copy_observation(layout: Layout, observation: Any, budget: int, most: int, where: str) -> Any:
    """Copy an observation of any type and shape.

    Args:
      layout: the version.
      observation: the EnvCApi_Observation.
      budget: the maximum size of this observation, in bytes, which is the rest of `most`.
      most: the maximum size of all observations together, in bytes.
      where: the name of the observation in error messages.

    Returns:
      A new writable array, or a `str`.

    Raises:
      ProtocolError: the observation breaks the interface or exceeds the limits.
    """
    ffi, spec, pointer = layout.ffi, observation.spec, observation.payload.bytes
    shape = read_shape(ffi, spec, where)
    type_ = known_type(layout, spec.type, where)
    is_text = type_ is ObservationType.STRING
    if is_text and len(shape) != 1:
        raise ProtocolError(f"{where} is a string with shape {list(shape)}; expected [length]")
    size = checked_size(shape, type_.item_bytes, most, where)
    if size > budget:
        raise ProtocolError(
            f"{where} takes {size} bytes; together with the earlier values, this exceeds {most} "
            "bytes (Limits.message_bytes)"
        )
    if size and not pointer:
        raise ProtocolError(f"{where} has shape {list(shape)}, but its payload is null")
    if is_text:
        return _decode(ffi.buffer(pointer, size)[:] if size else b"", where)
    if not size:
        return np.empty(shape, type_.value)
    return np.frombuffer(ffi.buffer(pointer, size), type_.value).reshape(shape).copy()


def size_of(value: Any) -> int:
    """Return the size of a copied observation, in bytes, to subtract from the budget."""
    return len(value) if isinstance(value, str) else int(value.nbytes)
