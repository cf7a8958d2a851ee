"""Lookup, validation and packing of an agent's actions or observations.

Everything that depends only on the specs is computed once, when they arrive. In each step, a
value's dtype and shape are compared with those of its spec. A value's range is checked element by
element if the value has few elements, and with two reductions otherwise.
"""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable, KeysView, Mapping
from typing import Any

import numpy as np
from dm_env import specs as dm_env_specs

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.errors import SpecError, UnknownNameError
from dm_env_rpc_client.plain_text import printable
from dm_env_rpc_client.tensors import casting, codecs, nesting, packing, specs
from dm_env_rpc_client.tensors.memory_limits import (
    DEFAULT,
    Budget,
    Limits,
    largest_array,
    listed,
    shortened,
)

_COMPARED = 256
"""An unknown name is cut to this many characters before it is compared with the known names."""

_FEW = 64
"""The maximum number of elements that are compared one by one. Comparing one by one takes 1 us,
whereas two reductions take 3 to 7 us."""


class TensorField:
    """One action or observation, which packs and unpacks values according to its spec.

    Attributes:
      uid: the UID.
      name: the name, with periods between levels of nesting.
      spec: the TensorSpec.
      label: the name of the field in error messages, such as "action 'arm.torque' (uid 3)".
      codec: the converter for the elements of values.
      shape: the shape, in which a variable dimension is negative.
    """

    __slots__ = (
        "_finite_bounds",
        "bounds",
        "codec",
        "label",
        "name",
        "shape",
        "spec",
        "uid",
        "variable",
    )

    def __init__(
        self,
        uid: int,
        spec: dm_env_rpc_pb2.TensorSpec,
        kind: str,
        budget: Budget | None = None,
    ):
        self.uid = uid
        self.name = spec.name
        self.spec = spec
        self.label = f"{kind} {spec.name!r} (uid {uid})"
        self.codec, self.shape, self.bounds = specs.check_spec(spec, self.label, budget)
        self.variable = any(size < 0 for size in self.shape)
        # One pair of bounds for each element, created on first use.
        self._finite_bounds: tuple[list[float], list[float]] | None = None

    def pack(self, value: Any, check_range: bool = True) -> dm_env_rpc_pb2.Tensor:
        """Validate a value against the spec and pack it (see `SpecManager.pack`)."""
        return packing.pack_array(self.conform(value, check_range), self.codec, self.label)

    def conform(self, value: Any, check_range: bool = True) -> codecs.Array:
        """Validate `value` and return it as an array with the dtype and shape of the spec."""
        if type(value) is np.ndarray and value.dtype == self.codec.dtype and value.dtype != object:
            array = value
        else:
            array = packing.to_dtype(casting.as_array(value, self.label), self.codec, self.label)
        self._check_shape(array.shape)
        if check_range and self.codec.is_numeric and array.size:
            self._check_range(array)
        return array

    def admits(self, shape: Iterable[int]) -> bool:
        """Whether `shape` matches the spec's shape, whose variable dimension admits any length."""
        shape = tuple(shape)
        return len(shape) == len(self.shape) and all(
            mine == its or mine < 0 for mine, its in zip(self.shape, shape, strict=True)
        )

    def _check_range(self, array: codecs.Array) -> None:
        minimum, maximum = self.bounds
        if minimum is None and maximum is None and array.dtype.kind != "f":
            return
        if array.size <= _FEW and not self.variable and self._are_few_in_range(array):
            return
        # NaN propagates through both reductions and fails both comparisons.
        low, high = array.min(), array.max()
        if np.ndim(minimum) or np.ndim(maximum):
            fits = (minimum is None or np.all(array >= minimum)) and (
                maximum is None or np.all(array <= maximum)
            )
        else:
            fits = (minimum is None or low >= minimum) and (maximum is None or high <= maximum)
        if not fits or (array.dtype.kind == "f" and not (np.isfinite(low) and np.isfinite(high))):
            self._raise_out_of_range(array)

    def _are_few_in_range(self, array: codecs.Array) -> bool:
        """Whether every element is finite and within its bounds.

        This is fast only for few elements.
        """
        bounds = self._finite_bounds
        if bounds is None:
            bounds = self._finite_bounds = self._bounds_of_elements()
        lows, highs = bounds
        values = array.ravel().tolist()
        # `map` with C functions, faster than Python loops. NaN fails both comparisons.
        return all(map(operator.le, lows, values)) and all(map(operator.le, values, highs))

    def _bounds_of_elements(self) -> tuple[list[float], list[float]]:
        dtype = self.codec.dtype
        limits: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        minimum, maximum = self.bounds
        low = limits.min if minimum is None else np.maximum(minimum, limits.min)
        high = limits.max if maximum is None else np.minimum(maximum, limits.max)
        lows, highs = (np.broadcast_to(end, self.shape).ravel().tolist() for end in (low, high))
        return lows, highs

    def _raise_out_of_range(self, array: codecs.Array) -> None:
        """Raise SpecError for the first element out of range.

        Infinity is in range only if the bound is infinite.
        """
        minimum, maximum = self.bounds
        low = -np.inf if minimum is None else minimum
        high = np.inf if maximum is None else maximum
        fits = (array >= low) & (array <= high)
        if array.dtype.kind == "f":
            admitted = (np.isneginf(array) & (minimum is not None)) | (
                np.isposinf(array) & (maximum is not None)
            )
            fits &= np.isfinite(array) | admitted
        if np.all(fits):
            return
        index, element = casting.first_outside(fits)
        value = array[index]
        if not np.isfinite(value):
            raise SpecError(f"{self.label}: {element} is {value.item()!r}; expected a finite value")
        ends = (np.broadcast_to(end, array.shape)[index].item() for end in (low, high))
        raise SpecError(
            f"{self.label}: {element} is {value.item()!r}, outside its bounds "
            "[{!r}, {!r}]".format(*ends)
        )

    def unpack(self, tensor: dm_env_rpc_pb2.Tensor, budget: Budget | None = None) -> Any:
        """Unpack a tensor of the spec's dtype and shape (see `SpecManager.unpack`)."""
        budget = budget or Budget()
        if tensor.WhichOneof("payload") != self.codec.field:
            found = codecs.codec_of_payload(tensor, self.label).name
            raise SpecError(f"{self.label}: has dtype {found}; expected {self.codec.name}")
        shape = tuple(tensor.shape)
        if shape == self.shape and not self.variable:
            return packing.unpack_payload(tensor, self.codec, shape, self.label, budget)
        # If the message has a variable dimension, the shape follows from its elements.
        if all(size >= 0 for size in shape):
            self._check_shape(shape)
        value = packing.unpack_payload(tensor, self.codec, shape, self.label, budget)
        self._check_shape(np.shape(value))
        return value

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        if shape != self.shape and not self.admits(shape):
            raise SpecError(f"{self.label}: has shape {list(shape)}; expected {list(self.shape)}")


class SpecManager:
    """Packing and unpacking of named values according to one set of specs.

    Args:
      specs: TensorSpecs by UID, as in `ActionObservationSpecs.actions`. They are copied.
      kind: "action" or "observation", for error messages.
      limits: limits on the number of specs, the length of their names, and the memory for bounds
        and values.

    Raises:
      SpecError: a spec is invalid (see `check_spec`); two specs have the same name; a name is also
        the parent of another, as with `a` and `a.b`; or a limit is exceeded.
    """

    def __init__(
        self,
        specs: Mapping[int, dm_env_rpc_pb2.TensorSpec],
        kind: str = "tensor",
        limits: Limits = DEFAULT,
    ):
        self._kind = kind
        self._limits = limits
        budget = Budget(limits)
        budget.take_entries(len(specs), f"the {kind} specs")
        self._fields: dict[int, TensorField] = {}
        self._by_name: dict[str, TensorField] = {}
        for uid in sorted(specs):
            limits.check_name(specs[uid].name, f"the name of {kind} uid {uid}")
            spec = dm_env_rpc_pb2.TensorSpec()
            spec.CopyFrom(specs[uid])
            field = TensorField(uid, spec, kind, budget)
            if spec.name in self._by_name:
                other = self._by_name[spec.name].uid
                raise SpecError(
                    f"{field.label}: has the same name as uid {other}; names must be unique"
                )
            self._fields[uid] = self._by_name[spec.name] = field
        try:
            nesting.check_unambiguous(self._by_name, max_nesting=limits.nesting)
        except SpecError as error:
            raise SpecError(f"names of {kind}s: {error}") from None

    def __repr__(self) -> str:
        return printable(f"SpecManager({self._kind}s: {', '.join(self._by_name) or 'none'})")

    def _repr_html_(self) -> str:
        from dm_env_rpc_client.tensors.displays import markup, spec_tables

        by_name = {
            name: specs.tensor_spec_to_dm_env_spec(field.spec)
            for name, field in self._by_name.items()
        }
        return markup.section(f"{self._kind.capitalize()}s", spec_tables.spec_table(by_name))

    def check_sizes(self, names: Iterable[str]) -> None:
        """Raise SpecError if the values that a spec describes cannot fit into any message.

        Args:
          names: the names of the values.
        """
        most = largest_array(self._limits)
        for name in names:
            field = self.field(name)
            # A variable dimension counts with length 1.
            size = math.prod(map(abs, field.shape)) * field.codec.dtype.itemsize
            if size > most:
                advice = (
                    "" if self._kind == "action" else ", leave it out with requested_observations"
                )
                raise SpecError(
                    f"{field.label}: an array of shape {list(field.shape)} and dtype "
                    f"{field.codec.name} takes {size} bytes; at most {most} are allowed "
                    "(Limits.message_bytes plus Limits.expanded_bytes); raise the "
                    f"limits{advice}, or have the server use smaller arrays"
                )

    @property
    def specs_by_uid(self) -> dict[int, dm_env_rpc_pb2.TensorSpec]:
        """A copy of the mapping from UIDs to TensorSpecs."""
        return {uid: field.spec for uid, field in self._fields.items()}

    @property
    def specs_by_name(self) -> dict[str, dm_env_rpc_pb2.TensorSpec]:
        """A copy of the mapping from names to TensorSpecs."""
        return {name: field.spec for name, field in self._by_name.items()}

    def names(self) -> KeysView[str]:
        """Return the names in the order of the UIDs."""
        return self._by_name.keys()

    def uids(self) -> KeysView[int]:
        """Return the UIDs in ascending order."""
        return self._fields.keys()

    def name_to_uid(self, name: str) -> int:
        """Return the UID for `name`, or raise UnknownNameError if the name is unknown."""
        return self.field(name).uid

    def uid_to_name(self, uid: int) -> str:
        """Return the name for `uid`, or raise UnknownNameError if the UID is unknown."""
        return self._field_of_uid(uid).name

    def name_to_spec(self, name: str) -> dm_env_rpc_pb2.TensorSpec:
        """Return the TensorSpec for `name`, or raise UnknownNameError if the name is unknown."""
        return self.field(name).spec

    def uid_to_spec(self, uid: int) -> dm_env_rpc_pb2.TensorSpec:
        """Return the TensorSpec for `uid`, or raise UnknownNameError if the UID is unknown."""
        return self._field_of_uid(uid).spec

    def field(self, name: str) -> TensorField:
        """Return the field for `name`, or raise UnknownNameError and suggest a similar name."""
        field = self._by_name.get(name)
        if field is None:
            near = difflib.get_close_matches(str(name)[:_COMPARED], self._by_name, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            known = listed(self._by_name)
            shown = shortened(str(name), self._limits.name_bytes)
            text = f"unknown {self._kind} {shown!r}; {hint}{self._kind}s: {known}"
            raise UnknownNameError(text)
        return field

    def _field_of_uid(self, uid: int) -> TensorField:
        field = self._fields.get(uid)
        if field is None:
            known = listed(self._fields)
            raise UnknownNameError(f"unknown {self._kind} uid {uid}; uids: {known}")
        return field

    def pack(self, tensors: Mapping[str, Any]) -> dict[int, dm_env_rpc_pb2.Tensor]:
        """Pack a mapping of names to values into a mapping of UIDs to Tensor messages.

        Args:
          tensors: values by name. Names can be omitted. A value can have any type that
            `pack_tensor` accepts. It must have the shape of its spec (any length along a variable
            dimension), and a cast to the dtype of the spec must not change it.

        Returns:
          The messages by UID.

        Raises:
          UnknownNameError: a name is unknown. The error is also a SpecError and a KeyError.
          SpecError: the shape is wrong, a cast would change an element, or an element is out of
            bounds, NaN, or infinite without an infinite bound.
        """
        packed = {}
        for name, value in tensors.items():
            field = self.field(name)
            packed[field.uid] = field.pack(value)
        return packed

    def unpack(
        self, tensors: Mapping[int, dm_env_rpc_pb2.Tensor], budget: Budget | None = None
    ) -> dict[str, Any]:
        """Unpack a mapping of UIDs to Tensor messages into a mapping of names to values.

        Args:
          tensors: the messages by UID.
          budget: the memory that the values may take together; None for the budget of `limits`.

        Returns:
          Values by name, in the order of `tensors`, as `unpack_tensor` returns them.

        Raises:
          UnknownNameError: a UID is unknown. The error is also a SpecError and a KeyError.
          SpecError: a dtype or shape differs from the spec's, a number of elements does not fit the
            shape, or the values exceed the budget.
        """
        budget = budget or Budget(self._limits)
        unpacked = {}
        for uid, tensor in tensors.items():
            field = self._field_of_uid(uid)
            unpacked[field.name] = field.unpack(tensor, budget)
        return unpacked


def dm_env_spec(spec_manager: SpecManager) -> dict[str, dm_env_specs.Array]:
    """Return the dm_env specs of all actions or observations.

    Args:
      spec_manager: their SpecManager.

    Returns:
      The results of `tensor_spec_to_dm_env_spec` by flat name, with periods between levels of
      nesting.

    Raises:
      As `tensor_spec_to_dm_env_spec`.
    """
    return {
        name: specs.tensor_spec_to_dm_env_spec(spec)
        for name, spec in spec_manager.specs_by_name.items()
    }
