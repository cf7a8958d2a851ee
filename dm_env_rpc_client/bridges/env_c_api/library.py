"""Create an EnvCApi context from a library and its connect function.

EnvCApi does not define how a context is created. Two kinds of connect function are common, and
both return 0 for success:

    int connect(EnvCApi* api, void** context);
    int connect(const Params* params, EnvCApi* api, void** context);

`Params` is a library-specific struct, which often consists of a single `const char*`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from dm_env_rpc_client.bridges.env_c_api import declarations
from dm_env_rpc_client.bridges.env_c_api.context import Context
from dm_env_rpc_client.bridges.env_c_api.declarations import Layout
from dm_env_rpc_client.errors import LibraryError, ProtocolError, SpecError
from dm_env_rpc_client.tensors.memory_limits import Limits

Library = str | os.PathLike[str] | None
"""The path of a library, or None if `connect` needs no library."""

Connect = str | int | Callable[[], tuple[Any, Any]]
"""The name of a symbol, the address of a function, or a Python callable.

An address is given as an int (an address in this process), as a ctypes or cffi function, or as an
offset from the library's load address, such as "+0x1234", for a function that is not exported.

A callable returns the filled struct (a cffi pointer, an address, or an object that holds its
bytes, such as a ctypes.Structure) and the context (a cffi pointer, a ctypes.c_void_p, or an
address).
"""

LaunchParams = Any
"""The first argument of the connect function.

The argument can be the bytes of a struct, a list of C strings (a struct with a `const char*` for
each), a cffi pointer, or None for a connect function without this argument.
"""

# The base class of CDLL's functions, for which ctypes has no public name.
_CFunction: Any = ctypes.CFUNCTYPE(None).__base__

_GUARD_BYTES = 64 * ctypes.sizeof(ctypes.c_void_p)
_GUARD = b"\xa5" * _GUARD_BYTES

_RTLD_DI_LINKMAP = 2


class Opening(NamedTuple):
    """A library and the arguments for opening its environment.

    Attributes:
      library: the path of the library, which stays loaded until the process ends; see `Library`.
      connect: the function that creates the context; see `Connect`.
      version: the version of the interface, as for `layout`.
      launch_params: the first argument of the connect function; see `LaunchParams`.
      settings: settings of the library, applied before `init`.
      observations: the names of the observations to read; None for all.
      shapes: shapes of observations without a declared shape, by name or pattern, with 0 for
        variable lengths.
      start_attempts: the maximum number of calls of `start` for one episode while it returns
        EAGAIN.
      limits: limits for copies of the library's memory.
    """

    library: Library
    connect: Connect
    version: str
    launch_params: LaunchParams
    settings: Mapping[str, str]
    observations: Collection[str] | None
    shapes: Mapping[str, Sequence[int]]
    start_attempts: int
    limits: Limits


def open_context(opening: Opening) -> Context:
    """Load the library, if there is one, and create a context.

    Args:
      opening: the library and its environment; this function does not apply the settings.

    Returns:
      The context, with all functions of the interface version.

    Raises:
      SpecError: the library or the symbol is not found, or an argument is invalid.
      LibraryError: the connect function failed.
      ProtocolError: the context is null, a function is missing, or the struct belongs to another
        version.
    """
    layout = declarations.layout(opening.version)
    connect, launch_params = opening.connect, opening.launch_params
    loaded = None
    if opening.library is not None:
        path = os.path.abspath(opening.library)
        try:
            loaded = ctypes.CDLL(path)
        except OSError as error:
            raise SpecError(f"cannot load the library {path}: {error}") from error
    if isinstance(connect, _CFunction):
        connect = ctypes.cast(connect, ctypes.c_void_p).value or 0
    elif isinstance(connect, layout.ffi.CData):
        connect = int(layout.ffi.cast("uintptr_t", connect))
    if callable(connect):
        if launch_params is not None:
            raise SpecError(
                "launch_params is only for a C function; a callable must bind its own arguments"
            )
        struct, context = connect()
        api, handle = _copy_struct(layout, struct), _as_pointer(layout, context)
        keep_alive: list[Any] = [struct, context]
    else:
        params = None if launch_params is None else _as_params(layout, launch_params)
        address = _address(loaded, connect)
        api, handle, keep_alive = _connect(layout, address, params)
    missing = [name for name in layout.functions if not getattr(api, name)]
    if missing:
        raise ProtocolError(
            f"the library leaves {', '.join(missing)} null, but version {layout.version} has no "
            "optional functions; the library is incomplete or was compiled with another version"
        )
    if not handle:
        raise ProtocolError("the connect function succeeded, but its context is null")
    return Context(layout, api, handle, [loaded, *keep_alive], opening.limits)


def _address(loaded: ctypes.CDLL | None, connect: str | int) -> int:
    if isinstance(connect, int):
        return connect
    if loaded is None:
        raise SpecError(f"connect is {connect!r}, which needs a library, but library is None")
    if connect.startswith("+"):
        try:
            offset = int(connect, 0)
        except ValueError:
            raise SpecError(
                f"connect is {connect!r}; expected an offset such as '+0x1234'"
            ) from None
        return _load_address(loaded) + offset
    try:
        address = ctypes.cast(loaded[connect], ctypes.c_void_p).value
    except AttributeError as error:
        raise SpecError(
            f"{loaded._name} exports no function {connect!r}; for a function that is not exported, "
            "pass its offset in the library, such as '+0x1234'"
        ) from error
    assert address is not None, "a symbol that is found has an address"
    return address


def _load_address(loaded: ctypes.CDLL) -> int:
    """Return the load address of a library, which is the first member of its link_map."""
    first_member = ctypes.POINTER(ctypes.c_size_t)()
    try:
        dlinfo = ctypes.CDLL(None).dlinfo
    except (AttributeError, TypeError) as error:
        raise SpecError("offsets into a library need dlinfo, which this system lacks") from error
    handle = ctypes.c_void_p(loaded._handle)
    if dlinfo(handle, _RTLD_DI_LINKMAP, ctypes.byref(first_member)):
        raise SpecError(f"cannot determine the load address of {loaded._name}")
    return int(first_member[0])


def _as_params(layout: Layout, launch_params: LaunchParams) -> tuple[Any, ...]:
    """Return the pointer to pass, and the objects that must stay alive while it is used."""
    ffi = layout.ffi
    if isinstance(launch_params, bytes):
        # Doubles, because a struct needs an alignment that an array of chars may not have.
        struct = ffi.new("double[]", len(launch_params) // 8 + 1)
        ffi.memmove(struct, launch_params, len(launch_params))
        return (struct,)
    if isinstance(launch_params, list | tuple):
        texts = [
            ffi.new("char[]", text if isinstance(text, bytes) else text.encode())
            for text in launch_params
        ]
        return (ffi.new("const char*[]", [*texts, ffi.NULL]), *texts)
    try:
        return (ffi.cast("const void*", launch_params), launch_params)
    except TypeError as error:
        raise SpecError(
            f"launch_params is {launch_params!r}; expected the bytes of a struct, a list of "
            "strings, or a cffi pointer"
        ) from error


def _connect(
    layout: Layout, address: int, params: tuple[Any, ...] | None
) -> tuple[Any, Any, list[Any]]:
    ffi = layout.ffi
    # The caller may have stated a wrong version. A library whose struct is larger then
    # overwrites the guard behind this one.
    memory = ffi.new("double[]", (layout.size + _GUARD_BYTES) // 8)
    guard = ffi.buffer(memory)[layout.size :]
    ffi.buffer(memory)[layout.size :] = _GUARD[: len(guard)]
    context = ffi.new("void**")
    api = ffi.cast("EnvCApi*", memory)
    if params is None:
        code = ffi.cast("int (*)(EnvCApi*, void**)", address)(api, context)
    else:
        function = ffi.cast("int (*)(const void*, EnvCApi*, void**)", address)
        code = function(params[0], api, context)
    if code:
        raise LibraryError("connect function", code, "the function provides no error message")
    if ffi.buffer(memory)[layout.size :] != _GUARD[: len(guard)]:
        raise ProtocolError(
            f"the connect function wrote more than the {len(layout.functions)} functions of "
            f"version {layout.version}; the library was compiled with another version"
        )
    return _copy_struct(layout, api), context[0], [memory, *(params or ())]


def _copy_struct(layout: Layout, struct: Any) -> Any:
    """Copy the struct of function pointers, so that the library cannot change it later."""
    ffi = layout.ffi
    api = ffi.new("EnvCApi*")
    if isinstance(struct, int):
        struct = ffi.cast("EnvCApi*", struct)
    if isinstance(struct, ffi.CData):
        size = ffi.sizeof(struct[0])
    else:
        try:
            size = memoryview(struct).nbytes
        except TypeError as error:
            raise SpecError(
                f"the connect callable returned {type(struct).__name__} for the struct; expected "
                "a cffi pointer to it, its address, or an object that holds its bytes"
            ) from error
    if size != layout.size:
        raise SpecError(
            f"the struct has {size} bytes; expected {layout.size} for version {layout.version}"
        )
    ffi.memmove(api, struct, size)
    return api


def _as_pointer(layout: Layout, context: Any) -> Any:
    value = context.value or 0 if isinstance(context, ctypes.c_void_p) else context
    try:
        return layout.ffi.cast("void*", value)
    except TypeError as error:
        raise SpecError(
            f"the connect callable returned {type(context).__name__} for the context; expected a "
            "cffi pointer, a ctypes.c_void_p, or an address"
        ) from error
