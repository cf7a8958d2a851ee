"""Conversion between NumPy arrays and other libraries' arrays, for both client and server.

Conversion imports no libraries, because an array exists only after its library has been imported.
Only `named`, whose caller specifies a library, imports that library.

All arrays of a structure, such as GPU tensors, leave a device in one transfer. They are joined on
the device and split after the transfer, which is the only operation that waits. On a CPU, a
converted array shares memory with the NumPy array, so the owner of the NumPy array must not write
to it afterwards.

No value changes silently. NumPy has no bfloat16, so bfloat16 arrays become float32, which
represents all bfloat16 values. JAX without `jax_enable_x64` has no 64-bit types: integers become
32-bit if all values fit, and otherwise an error identifies the array. Without `jax_enable_x64`,
float64 arrays are rounded to float32, as they are for a float32 spec.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors import structures

AUTO = "auto"
"""The value of `arrays` that selects the same array library as the environment's own arrays."""

NAMES = ("numpy", "torch", "jax")
"""The names of the array libraries that a caller can select."""

_Array: TypeAlias = npt.NDArray[Any]

_PLAIN = frozenset((np.ndarray, float, int, bool, str, bytes, type(None), dict, list, tuple))

_ARRAYS = (("torch", "Tensor"), ("jax", "Array"), ("cupy", "ndarray"))

_MOST_LEVELS = 32
"""The maximum nesting depth of values that are converted. Deeper values, as in a structure that
contains itself, are left unchanged."""


class ArrayKind(NamedTuple):
    """An array library and the device of its arrays.

    Attributes:
      library: the name of the library's module, such as "torch".
      device: a device object of the library, or None for the library's default device.
    """

    library: str
    device: Any = None

    def __str__(self) -> str:
        return self.library if self.device is None else f"{self.library} on {self.device}"


NUMPY = ArrayKind("numpy")


def check_names(arrays: Any, device: Any = None, more: Iterable[str] = ()) -> None:
    """Raise SpecError unless `arrays` is in `NAMES` or `more` and can be used with `device`."""
    known = (*more, *NAMES)
    if arrays not in known:
        texts = ", ".join(map(repr, known))
        raise SpecError(f"arrays={arrays!r}: expected one of {texts}")
    if device is not None and arrays == "numpy":
        raise SpecError(f"device={device!r}: NumPy has no devices; pass arrays='torch' or 'jax'")


def named(arrays: str, device: Any = None) -> ArrayKind:
    """Import the requested library and return the `ArrayKind` of its arrays.

    Args:
      arrays: one of `NAMES`.
      device: the name of a device, such as "cuda" or "cuda:1", a device object of the library, or
        None for the library's default device.

    Raises:
      SpecError: the library or the device is not available.
    """
    check_names(arrays, device)
    try:
        library = importlib.import_module(arrays)
    except ImportError as error:
        raise SpecError(
            f"arrays={arrays!r}: {sys.executable} cannot import {arrays}: {error}; install "
            f"{arrays} for this interpreter"
        ) from error
    if device is None:
        return ArrayKind(arrays)
    found = device
    try:
        if arrays == "torch":
            found = library.device(device)
            library.empty(0, device=found)  # Raises if the device does not exist.
        elif isinstance(device, str):
            platform, _, index = device.partition(":")
            found = library.devices(platform)[int(index or 0)]
    except Exception as error:  # Each library raises its own types.
        raise SpecError(f"device={device!r}: {arrays} cannot use this device: {error}") from error
    return ArrayKind(arrays, found)


def kind_of(structure: Any) -> ArrayKind:
    """Return the kind of the first non-NumPy array in a structure, or NUMPY if there is none."""
    found = list(_found(structure, _library_of))
    if not found:
        return NUMPY
    array = found[0][1]
    library = str(_library_of(array))
    if library == "jax":
        # None for an array on several devices: JAX places other arrays next to it by itself.
        own = list(array.devices())
        return ArrayKind(library, own[0] if len(own) == 1 else None)
    return ArrayKind(library, getattr(array, "device", None))


def to_numpy(structure: Any, where: str) -> Any:
    """Replace other libraries' arrays in a structure with NumPy arrays.

    Args:
      structure: nested mappings, lists, tuples, named tuples and dataclasses. Other values are
        left unchanged.
      where: the name of the structure in error messages.

    Returns:
      The structure with NumPy arrays, or the structure itself if no array was replaced. Arrays
      from a CPU can share memory with the original arrays, and can be read-only. A dataclass with
      replaced arrays becomes a dict.

    Raises:
      SpecError: an array cannot be copied from its device, or NumPy lacks its dtype. The error
        message contains the name of the array.
    """
    found = list(_found(structure, _library_of))
    taken: list[Any] = [None] * len(found)
    libraries = [_library_of(array) for _, array in found]
    for library in dict.fromkeys(libraries):
        indices = [index for index, own in enumerate(libraries) if own == library]
        names = [_name(where, found[index][0]) for index in indices]
        take = _TAKERS.get(str(library), _by_dlpack)
        with _copying(names, f"from {library}"):
            arrays = take([found[index][1] for index in indices], names)
        for index, array, name in zip(indices, arrays, names, strict=True):
            # Compared by name, because NumPy gets this dtype from another package.
            own = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
            if own.dtype.kind not in "biufc":
                raise _no_dtype(name, "NumPy", own.dtype)
            taken[index] = own
    return _rebuilt(structure, _library_of, iter(taken)) if found else structure


def from_numpy(structure: Any, kind: ArrayKind, where: str) -> Any:
    """Replace numeric NumPy arrays and scalars in a structure with arrays of another kind.

    Args:
      structure: as for `to_numpy`. Arrays of strings are left unchanged.
      kind: the kind of the new arrays. On a CPU, they can share memory with the NumPy arrays,
        except for read-only arrays, which are copied for torch.
      where: the name of the structure in error messages.

    Raises:
      SpecError: the library lacks the dtype of an array, the values of an array would change, or
        an array cannot be copied to the device. The error message contains the name of the array.
    """
    found = [] if kind.library == "numpy" else list(_found(structure, _is_numbers))
    if not found:
        return structure
    names = [_name(where, path) for path, _ in found]
    give = _GIVERS.get(kind.library, _as_arrays)
    with _copying(names, f"to {kind}"):
        given = give([np.asarray(array) for _, array in found], names, kind)
    return _rebuilt(structure, _is_numbers, iter(given))


def _library_of(value: Any) -> str | None:
    """Return the library of an array, or None for NumPy arrays and for other values."""
    if type(value) in _PLAIN:
        return None
    for library, name in _ARRAYS:
        # A module that is still being imported does not have the name yet.
        if isinstance(value, getattr(sys.modules.get(library), name, ())):
            return library
    if isinstance(value, np.ndarray | np.generic | type) or not hasattr(value, "__dlpack__"):
        return None
    namespace = getattr(value, "__array_namespace__", None)
    return None if namespace is None else str(namespace().__name__)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc"


def _found(
    value: Any, is_wanted: Callable[[Any], Any], path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the arrays of a structure, each with its path of keys and indices."""
    # A recursive function within this one would keep the arrays until garbage is collected.
    if is_wanted(value):
        yield path, value
    elif len(path) < _MOST_LEVELS:
        for key, part in structures.parts_of(value) or ():
            yield from _found(part, is_wanted, (*path, key))


def _rebuilt(
    value: Any, is_wanted: Callable[[Any], Any], arrays: Iterator[Any], level: int = 0
) -> Any:
    """Return a copy of a structure with new arrays in the places found by `_found`."""
    if is_wanted(value):
        return next(arrays)
    parts = (structures.parts_of(value) if level < _MOST_LEVELS else None) or []
    made = [(key, _rebuilt(part, is_wanted, arrays, level + 1)) for key, part in parts]
    if all(new is old for (_, new), (_, old) in zip(made, parts, strict=True)):
        return value
    if not isinstance(value, list | tuple):
        return dict(made)
    kind: Any = type(value)
    items = [part for _, part in made]
    return kind(*items) if hasattr(value, "_fields") else kind(items)


def _name(where: str, path: Sequence[Any]) -> str:
    return f"{where} {'.'.join(map(str, path))!r}" if path else where


@contextlib.contextmanager
def _copying(names: Sequence[str], way: str) -> Iterator[None]:
    try:
        yield
    except SpecError:
        raise
    except Exception as error:  # Each library raises its own types.
        raise SpecError(f"{', '.join(names)}: cannot be copied {way}: {error}") from error


def _no_dtype(name: str, library: str, dtype: Any) -> SpecError:
    return SpecError(
        f"{name}: {library} has no type for {dtype}; convert it to a type that both have"
    )


def _moved(arrays: Sequence[Any], move: Callable[[Iterator[Any]], Any]) -> list[Any]:
    """Move several arrays between devices as one block.

    Args:
      arrays: arrays of one library.
      move: a function that joins the bytes of arrays, and returns them on the other device.
    """
    # Largest items first, so that each array is aligned in the block.
    order = sorted(range(len(arrays)), key=lambda index: -arrays[index].itemsize)
    block = move(arrays[index] for index in order)
    moved, start = {}, 0
    for index in order:
        array = arrays[index]
        stop = start + array.itemsize * int(np.prod(array.shape))
        moved[index] = block[start:stop].view(array.dtype).reshape(array.shape)
        start = stop
    return [moved[index] for index in range(len(arrays))]


def _torch_block(torch: Any, tensors: Iterator[Any]) -> Any:
    return torch.cat([each.contiguous().view(-1).view(torch.uint8) for each in tensors])


def _from_torch(tensors: Sequence[Any], names: Sequence[str]) -> list[Any]:
    torch: Any = sys.modules["torch"]
    plain = [tensor.detach().resolve_conj().resolve_neg() for tensor in tensors]
    plain = [each.float() if each.dtype is torch.bfloat16 else each for each in plain]
    for device in {each.device for each in plain if each.device.type != "cpu"}:
        own = [index for index, each in enumerate(plain) if each.device == device]
        host = _moved([plain[index] for index in own], lambda own: _torch_block(torch, own).cpu())
        for index, tensor in zip(own, host, strict=True):
            plain[index] = tensor
    arrays = []
    for each, name in zip(plain, names, strict=True):
        try:
            arrays.append(each.numpy())
        except TypeError as error:
            raise _no_dtype(name, "NumPy", f"{each.dtype} ({each.layout})") from error
    return arrays


def _from_jax(arrays: Sequence[Any], names: Sequence[str]) -> list[Any]:
    for array in arrays:
        # As in `jax.device_get`, all copies start before the first is awaited. On a CPU there is
        # nothing to copy, and the calls would take 50 us for each step.
        if getattr(array.device, "platform", "") != "cpu":
            array.copy_to_host_async()
    return [np.asarray(array) for array in arrays]


def _from_cupy(arrays: Sequence[Any], names: Sequence[str]) -> list[Any]:
    cupy: Any = sys.modules["cupy"]
    with cupy.cuda.Device(arrays[0].device.id):
        return _moved(
            arrays, lambda own: cupy.concatenate([a.ravel().view(np.uint8) for a in own]).get()
        )


def _by_dlpack(arrays: Sequence[Any], names: Sequence[str]) -> list[Any]:
    return [np.from_dlpack(array) for array in arrays]


_TAKERS: dict[str, Callable[[Sequence[Any], Sequence[str]], list[Any]]] = {
    "torch": _from_torch,
    "jax": _from_jax,
    "cupy": _from_cupy,
}


def _to_torch(arrays: Sequence[_Array], names: Sequence[str], kind: ArrayKind) -> list[Any]:
    torch: Any = sys.modules["torch"]
    tensors = []
    for array, name in zip(arrays, names, strict=True):
        flags = array.flags
        if not (flags.writeable and flags.c_contiguous and array.dtype.isnative):
            array = np.array(array, array.dtype.newbyteorder("="), order="C")  # noqa: PLW2901
        try:
            tensors.append(torch.from_numpy(array))
        except TypeError as error:
            raise _no_dtype(name, "torch", array.dtype) from error
    if kind.device is None or torch.device(kind.device).type == "cpu":
        return tensors
    return _moved(tensors, lambda own: _torch_block(torch, own).to(kind.device))


def _to_jax(arrays: Sequence[_Array], names: Sequence[str], kind: ArrayKind) -> list[Any]:
    jax: Any = sys.modules["jax"]
    own = []
    for array, name in zip(arrays, names, strict=True):
        dtype = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
        with np.errstate(over="ignore"):
            narrow = array.astype(dtype, copy=False)
        if narrow is not array:
            is_rounded = np.isfinite(narrow) | ~np.isfinite(array)
            fits = narrow == array if dtype.kind in "iu" else is_rounded
            if not np.all(fits):
                raise SpecError(
                    f"{name}: {array[~fits].flat[0]} does not fit in {dtype}; JAX has 64-bit types "
                    "only after jax.config.update('jax_enable_x64', True)"
                )
        own.append(narrow)
    return list(jax.device_put(own, kind.device))


def _to_cupy(arrays: Sequence[_Array], names: Sequence[str], kind: ArrayKind) -> list[Any]:
    cupy: Any = sys.modules["cupy"]
    with cupy.cuda.Device(getattr(kind.device, "id", kind.device)):
        return [cupy.asarray(array) for array in arrays]


def _as_arrays(arrays: Sequence[_Array], names: Sequence[str], kind: ArrayKind) -> list[Any]:
    namespace: Any = sys.modules[kind.library]
    return [namespace.asarray(array, device=kind.device) for array in arrays]


_GIVERS: dict[str, Callable[[Sequence[_Array], Sequence[str], ArrayKind], list[Any]]] = {
    "torch": _to_torch,
    "jax": _to_jax,
    "cupy": _to_cupy,
}
