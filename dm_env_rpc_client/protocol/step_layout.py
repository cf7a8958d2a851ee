"""A decoder that uses one `struct.unpack` for answers that differ only in element values.

A server's answers to one agent's steps have the same fields in the same order. Unless the answers
contain changing strings, large integers or variable shapes, each element is always in the same
place. Therefore the first answer of a given size is read field by field, and the bytes between its
elements are stored and compared with later answers of that size. Decoding a reward, a discount and
an observation takes 2.9 us instead of 6.2 us if the observation has one element, and 2.8 us
instead of 6.9 us if the observation is an image.

If the comparison already proves that an answer is valid, as it does for most answers, the elements
are read only on demand (`UnreadStep`) or together with those of many other answers
(`timesteps.py`).
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dm_env_rpc_client.protocol.envelopes import Buffer
from dm_env_rpc_client.protocol.step_fields import (
    MISSING,
    Reader,
    copied_from,
    elements_in,
    elements_reader,
)
from dm_env_rpc_client.tensors.spec_manager import TensorField

_MAX_TEXT = 1 << 10
"""The maximum length of a string that is stored as a constant part of answers."""

_FORMATS = {"float32": "f", "float64": "d", "uint8": "B", "int8": "b"}
"""The `struct` formats of scalars whose encoding is the same as their representation in memory.
Bools are excluded because their values must be checked."""


_array: Any = np.ndarray


class StepAnswer(NamedTuple):
    """The contents of a StepResponse."""

    state: int
    """The EnvironmentStateType in the answer."""

    observations: dict[str, Any]
    """The requested observations by flat name, as arrays, scalars and strings like those that
    `SpecManager.unpack` returns."""


class UnreadStep(NamedTuple):
    """A valid StepResponse whose elements have not been read yet."""

    state: int
    """The EnvironmentStateType in the answer."""

    layout: StepLayout
    """The layout, which locates the elements in the answer."""

    message: Buffer
    """The serialized answer."""

    found: tuple[Any, ...]
    """The values unpacked by `layout`."""

    def read(self) -> dict[str, Any]:
        """Read and return the observations."""
        _, layout, message, found = self
        values = layout.template.copy()
        for name, slot, scalar in layout.scalars:
            values[name] = scalar(found[slot])
        for name, dtype, shape, block in layout.copied:
            values[name] = _array(shape, dtype, message, block).copy()
        for name, read_elements, block in layout.arrays:
            values[name] = read_elements(message, block)
        return values


class FoundEntry(NamedTuple):
    """The location of an observation's tensor in an answer."""

    place: int
    """The index of the observation among the requested observations."""

    name: str
    field: TensorField
    read: Reader
    start: int
    end: int
    value: Any


class _Hole(NamedTuple):
    """A range of bytes in which answers with the same layout can differ."""

    offset: int
    size: int
    code: str
    """The format code for `struct`."""

    entry: FoundEntry | None
    """The observation that contains these elements, or None for the environment state."""


class StepLayout:
    """The layout shared by all answers of the same size.

    Args:
      message: an answer with one state and one entry for each requested observation, and nothing
        else.
      state_at: the position of its state.
      entries: its entries, for which `fits` is true.

    Attributes:
      size: the size of each answer, in bytes.
      unpack: returns the parts of an answer: its state, scalars, and the bytes between elements.
      compared: returns those of the parts that are the same in all answers of the layout.
      expected: the result of `compared` for these answers.
      state_slot: the index of the state among the parts.
      is_checked: whether an answer may have other fields that `checked` must read at once.
      blocks: the position of the elements of each numeric observation, and its field, by name.
      slots: the indices of scalars in the unpacked values, by name.
      record: `blocks` as a structured dtype, for one answer.
      constants: the observations that are the same in all of these answers, by name.
      template: the value of each observation by name; None if it must be read from each answer.
      scalars: the name of each scalar, its index in the unpacked values, and its type.
      copied: the name of each array that is copied from an answer, its dtype and shape, and the
        position at which its elements begin.
      arrays: the name of each other array, its reader, and the position at which it begins.
    """

    def __init__(self, message: Buffer, state_at: int, entries: Sequence[FoundEntry]):
        self.size = len(message)
        self.blocks: dict[str, tuple[int, TensorField]] = {}
        self.slots: dict[str, int] = {}
        self.constants: dict[str, Any] = {}
        ordered = sorted(entries, key=lambda entry: entry.place)
        self.template: dict[str, Any] = {
            entry.name: entry.value if _is_constant(entry) else None for entry in ordered
        }
        self.scalars: list[tuple[str, int, Callable[[Any], Any]]] = []
        self.copied: list[tuple[str, np.dtype[Any], tuple[int, ...], int]] = []
        self.arrays: list[tuple[str, Callable[[Buffer, int], Any], int]] = []
        # Fields whose form may differ in the next answer.
        self._others: list[tuple[str, Reader, int, int]] = []
        holes = [_Hole(state_at, 1, "B", None)]
        for entry in ordered:
            holes += self._holes_of(entry)
        holes.sort(key=lambda hole: hole.offset)
        self.unpack, compared = self._unpacker(holes)
        # Never empty: the tag of the envelope is always compared.
        self.compared: Callable[[tuple[Any, ...]], Any] = operator.itemgetter(*compared)
        self.expected = self.compared(self.unpack(message))
        self.is_checked = bool(self._others)
        blocks = self.blocks.values()
        self.record = np.dtype(
            {
                "names": list(self.blocks),
                "formats": [
                    (field.codec.dtype.newbyteorder("<"), field.shape) for _, field in blocks
                ],
                "offsets": [block for block, _ in blocks],
                "itemsize": self.size,
            }
        )

    def _holes_of(self, entry: FoundEntry) -> list[_Hole]:
        """Record how to read an observation, and return the byte ranges in which it can differ."""
        field, start, end = entry.field, entry.start, entry.end
        codec = field.codec
        if _is_constant(entry):
            self.constants[entry.name] = entry.value
            if type(entry.value) is not str:
                # Each answer has an array of its own, as callers may resize theirs.
                self.arrays.append((entry.name, _copier(entry.value), 0))
            return []
        if codec.is_block and codec.dtype.kind != "b" and np.size(entry.value):
            block, size = elements_in(field, end)
            self.blocks[entry.name] = block, field
            scalar = _FORMATS.get(codec.dtype.name) if field.shape == () else None
            if field.shape and copied_from(field, self.size):
                self.copied.append((entry.name, codec.dtype, tuple(field.shape), block))
            elif scalar is None:
                self.arrays.append((entry.name, elements_reader(field), block))
            return [_Hole(block, size, scalar or f"{size}x", entry)]
        self._others.append((entry.name, entry.read, start, end))
        return [_Hole(start, end - start, f"{end - start}x", entry)] if end > start else []

    def _unpacker(self, holes: Sequence[_Hole]) -> tuple[Callable[[Buffer], Any], list[int]]:
        """Return the function that unpacks answers, and the indices of the results to compare."""
        parts, compared = ["<"], []
        position = slot = 0
        for offset, size, code, entry in holes:
            if offset > position:
                parts.append(f"{offset - position}s")
                compared.append(slot)
                slot += 1
            parts.append(code)
            position = offset + size
            if entry is None:
                self.state_slot = slot
            elif code.endswith("x"):
                continue
            else:
                self.scalars.append((entry.name, slot, entry.field.codec.dtype.type))
                self.slots[entry.name] = slot
            slot += 1
        if position < self.size:
            parts.append(f"{self.size - position}s")
            compared.append(slot)
        return struct.Struct("".join(parts)).unpack, compared

    @staticmethod
    def fits(entries: Sequence[FoundEntry]) -> bool:
        """Whether answers with these entries can share a layout."""
        return all(
            _is_constant(entry) or not (entry.field.variable or entry.field.codec.dtype.kind == "O")
            for entry in entries
        )

    def checked(self, state: int, message: Buffer, found: tuple[Any, ...]) -> StepAnswer | None:
        """Read an answer, or return None if the encoding of a field has changed."""
        values = UnreadStep(state, self, message, found).read()
        for name, read, start, end in self._others:
            value = values[name] = read(message, start, end)
            if value is MISSING:
                return None
        return StepAnswer(state, values)


def _copier(array: Any) -> Callable[[Buffer, int], Any]:
    return lambda message, block: array.copy()


def _is_constant(entry: FoundEntry) -> bool:
    """Whether all answers of a layout have the same value, because its bytes are compared.

    These are short strings, and arrays of variable shape without elements, such as the infos of a
    batch in most steps.
    """
    if type(entry.value) is str:
        return len(entry.value) <= _MAX_TEXT
    is_number = entry.field.codec.dtype.kind != "O"
    return entry.field.variable and is_number and not np.size(entry.value)
