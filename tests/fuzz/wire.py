"""Changes of serialized protobuf messages that know their structure: fields, lengths, varints.

A message that was taken apart and changed is put together with the right lengths, unless a wrong
length is the change. So most of what comes out is read further than to its first byte.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeAlias

from tests.tensors.strategies import varint

VARINT, FIXED64, BLOCK, FIXED32 = 0, 1, 2, 5

Field: TypeAlias = tuple[int, int, bytes]
"""Number, wire type, and the bytes of the value; those of a block without its length."""

_EDGES = [0, 1, 2, 127, 128, 255, 256, 65_536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32,
          (1 << 63) - 1, 1 << 63, (1 << 64) - 1]  # fmt: skip


def field(number: int, kind: int, value: bytes) -> bytes:
    """A field as it is on the wire."""
    length = varint(len(value)) if kind == BLOCK else b""
    return varint(number << 3 | kind) + length + value


def joined(fields: Sequence[Field]) -> bytes:
    return b"".join(field(*each) for each in fields)


def _read_varint(message: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = message[place]
        number |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            return number, place
        shift += 7
        if shift > 63:
            raise ValueError("a varint has at most 10 bytes")


def taken_apart(message: bytes) -> list[Field] | None:
    """The fields of a message; None if it is none."""
    found: list[Field] = []
    place = 0
    try:
        while place < len(message):
            tag, place = _read_varint(message, place)
            number, kind = tag >> 3, tag & 7
            if number == 0 or kind not in (VARINT, FIXED64, BLOCK, FIXED32):
                return None
            if kind == VARINT:
                begin = place
                _, place = _read_varint(message, place)
                found.append((number, kind, message[begin:place]))
                continue
            size = {FIXED64: 8, FIXED32: 4}.get(kind)
            if size is None:
                size, place = _read_varint(message, place)
            if place + size > len(message):
                return None
            found.append((number, kind, message[place : place + size]))
            place += size
    except (IndexError, ValueError):
        return None
    return found


def flipped(message: bytes, rng: random.Random) -> bytes:
    """One to three bytes replaced, removed or joined by others, or the rest cut off."""
    changed_bytes = bytearray(message)
    for _ in range(rng.randint(1, 3)):
        place = rng.randint(0, len(changed_bytes))
        if rng.random() < 0.1:
            del changed_bytes[place:]
        else:
            changed_bytes[place : place + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 2))
    return bytes(changed_bytes)


def _edge_value(kind: int, rng: random.Random) -> bytes:
    number = rng.choice(_EDGES) + rng.choice([0, 0, 0, -1, 1])
    if kind == VARINT:
        encoded = varint(number)
        if rng.random() < 0.2:  # Longer than it has to be, or than it may be.
            padding = rng.randint(1, 11)
            encoded = encoded[:-1] + bytes([encoded[-1] | 0x80]) + b"\x80" * padding + b"\0"
        return encoded
    return (number & ((1 << 64) - 1)).to_bytes(8, "little")[: 8 if kind == FIXED64 else 4]


def changed(message: bytes, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """A message with one to three changes in its structure, on any level.

    Args:
      message: valid, as a rule.
      rng: makes the choices.
      others: messages whose fields may be put into this one.
    """
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        message = _changed_once(message, rng, others)
    return message


def _changed_once(message: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    fields = taken_apart(message)
    if not fields or rng.random() < 0.1:
        return flipped(message, rng)
    place = rng.randrange(len(fields))
    number, kind, value = fields[place]
    if kind == BLOCK and rng.random() < 0.6:  # Further down.
        fields[place] = number, kind, _changed_once(value, rng, others)
        return joined(fields)
    what = rng.randrange(9)
    if what == 0:
        del fields[place]
    elif what == 1:
        fields.insert(rng.randrange(len(fields) + 1), fields[place])
    elif what == 2:
        rng.shuffle(fields)
    elif what == 3:
        fields[place] = rng.choice([1, 2, 3, 15, 16, number + 1, (1 << 29) - 1]), kind, value
    elif what == 4:
        kind = rng.choice([VARINT, FIXED64, FIXED32])
        fields[place] = number, kind, _edge_value(kind, rng)
    elif what == 5:
        fields[place] = number, BLOCK, rng.randbytes(rng.choice([0, 1, 3, 4, 8, 9, 40]))
    elif what == 6 and others:
        donor = taken_apart(rng.choice(others)) or fields
        fields.insert(place, rng.choice(donor))
    elif what == 7:
        for _ in range(rng.choice([1, 2, 5, 120])):
            value = field(number, BLOCK, value)
        fields[place] = number, BLOCK, value
    else:  # A length that is not that of the block.
        wrong = varint(number << 3 | BLOCK) + varint(rng.choice(_EDGES)) + value
        return joined(fields[:place]) + wrong + joined(fields[place + 1 :])
    return joined(fields)
