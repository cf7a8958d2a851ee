"""What stays the same from run to run: messages and texts without names, ports, paths and times.

Steps are coded by hand, so that they are compared byte for byte. Other messages pass through
protobuf, whose maps have no order: they are parsed and serialized in the order of their keys.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import any_pb2
from google.protobuf import message as protobuf_message
from google.rpc import error_details_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2 as pb
from dm_env_rpc_client._proto import line_1_0_pb2
from tests.transcripts.readable import inside, message_text
from tests.transcripts.streams import Stream

_FRAME = re.compile(r'File "([^"]*)", line \d+, in (\S+)')

_OWN_FOLDER = "transcripts"


ERROR_WIDTH = 180
"""Characters of a line with an error, whose text is what matters."""


_NOT_AWAITED = ("leave_world", "destroy_world")
"""What a client that closes waits for with a short deadline, so that the last ones may be late."""


class Placeholders:
    """Replaces what differs from run to run, with numbers in the order of appearance."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[str, int]] = {}

    def __call__(self, text: str) -> str:
        for pattern, replacement in _PATTERNS:
            if isinstance(replacement, str):
                text = pattern.sub(replacement, text)
            else:
                text = pattern.sub(functools.partial(self._of, replacement[0]), text)
        return text

    def _of(self, kind: str, match: re.Match[str]) -> str:
        known = self._numbers.setdefault(kind, {})
        return f"<{kind} {known.setdefault(match[0], len(known) + 1)}>"


# A text, or the kind of a placeholder with a number.
_PATTERNS: list[tuple[re.Pattern[str], str | tuple[str]]] = [
    # As NumPy 2 writes its scalars.
    (re.compile(r"np\.(?:bool|u?int|float|str)[0-9]*_?\(([^()]*)\)"), r"\1"),
    (re.compile(r"\bworld-[0-9]+(?:-[0-9]+)?\b"), ("world",)),
    (re.compile(r"(?:ipv4:|ipv6:)?(?:127\.0\.0\.1|localhost|\[::1\]):[0-9]+"), "<address>"),
    (re.compile(r"(?:ipv4|ipv6):[^\s'\"]*:[0-9]+"), "<address>"),
    (re.compile(r"(?<![\w.:/])(?:unix:)?/(?:[\w.@+-]+/)+[\w.@+-]*"), "<path>"),
    (re.compile(r"\b0x[0-9a-f]+\b"), "<id>"),
    (re.compile(r"\bline [0-9]+\b"), "line <n>"),
    (re.compile(r"\b[0-9]+\.[0-9]+ (s|ms|seconds)\b"), r"<time> \1"),
    (re.compile(r"\b(process|pid|PID) [0-9]+\b"), r"\1 <n>"),
    (re.compile(rf"\b{re.escape(Path(sys.executable).name)}\b"), "<python>"),
]  # fmt: skip


class Canonical(NamedTuple):
    """A message in the form that is compared.

    Args:
      kind: the name of its payload.
      data: its bytes.
      text: the same to read.
    """

    kind: str
    data: bytes
    text: str

    def line(self, direction: str, width: int | None) -> str:
        """Returns it as one line, of some number of characters; texts of errors are not cut."""
        line = f"{direction} {self.kind} {len(self.data)} {digest(self.data)} {self.text}".rstrip()
        return cut(line, ERROR_WIDTH if self.kind == "error" and width is not None else width)


def cut(line: str, width: int | None) -> str:
    """Returns the beginning of a line, of some number of characters; None for all of it."""
    return line if width is None or len(line) <= width else line[: width - 3] + "..."


def digest(data: bytes) -> str:
    """Returns a few characters that tell bytes from others."""
    return hashlib.blake2b(data, digest_size=3).hexdigest()


def canonical(data: bytes, kind: type[Any], replace: Placeholders, by_hand: bool) -> Canonical:
    """Returns a message in the form that is compared.

    Args:
      data: its bytes.
      kind: EnvironmentRequest or EnvironmentResponse.
      replace: what differs from run to run.
      by_hand: whether the bytes of a step are those that were sent.
    """
    try:
        message = kind.FromString(data)
    except protobuf_message.DecodeError:
        return Canonical("unreadable", data, data.hex())
    payload = message.WhichOneof("payload")
    if payload is None:
        old = (
            line_1_0_pb2.PropertyRequest
            if kind is pb.EnvironmentRequest
            else line_1_0_pb2.PropertyResponse
        )
        message = old.FromString(data)
        payload = message.WhichOneof("payload")
    if payload is None:
        return Canonical("empty", data, "")
    was_changed = _replace_texts(message, replace)
    if payload != "step" or not by_hand or was_changed:
        data = message.SerializeToString(deterministic=True)
    return Canonical(payload, data, message_text(getattr(message, payload)))


def _replace_texts(message: Any, replace: Callable[[str], str]) -> bool:
    """Replaces texts at all levels of a message; returns whether one has changed."""
    if isinstance(message, any_pb2.Any):
        return _replace_inside(message, replace)
    changed = False
    for field, value in message.ListFields():
        if field.message_type is not None:
            is_map = field.message_type.GetOptions().map_entry
            if is_map:
                values = [value[key] for key in sorted(value)]
            else:
                values = [value] if hasattr(value, "DESCRIPTOR") else list(value)
            for each in values:
                changed |= _replace_texts(each, replace)
        elif field.type == field.TYPE_STRING:
            if isinstance(value, str):
                new = replace(value)
                if new != value:
                    setattr(message, field.name, new)
                    changed = True
            else:
                texts = [replace(each) for each in value]
                if texts != list(value):
                    value[:] = texts
                    changed = True
    return changed


def _replace_inside(packed: any_pb2.Any, replace: Callable[[str], str]) -> bool:
    content = inside(packed)
    if content is None:
        return False
    if isinstance(content, error_details_pb2.DebugInfo):
        # Of a traceback, the frames of the environments here: others are how the server is made.
        frames = _FRAME.findall("".join(content.stack_entries))
        names = [name for path, name in frames if Path(path).parent.name == _OWN_FOLDER]
        content.stack_entries[:] = names
        content.detail = replace(content.detail)
        changed = True
    else:
        changed = _replace_texts(content, replace)
    if changed:
        packed.value = content.SerializeToString(deterministic=True)
    return changed


def lines_of_streams(
    streams: Sequence[Stream], replace: Placeholders, by_hand: bool, width: int | None
) -> list[str]:
    """Returns what passed on streams, sorted by content, since they open in any order.

    Args:
      streams: of the relays.
      replace: what differs from run to run.
      by_hand: whether the bytes of steps are those that were sent.
      width: of a line; None for whole ones.
    """
    # By numbers of their own first: those of `replace` depend on the order.
    ordered = sorted(streams, key=lambda each: _lines(each, Placeholders(), by_hand, None))
    return [line for stream in ordered for line in _lines(stream, replace, by_hand, width)]


def _lines(stream: Stream, replace: Placeholders, by_hand: bool, width: int | None) -> list[str]:
    pairs = " ".join(f"{key}={value!r}" for key, value in sorted(stream.metadata))
    lines = [replace(f"-- stream {pairs}".rstrip())]
    # The answer to a CreateWorld has the name that requests use: it has to have a number first.
    for direction, kind, messages in (
        (">", pb.EnvironmentRequest, stream.requests),
        ("<", pb.EnvironmentResponse, stream.answers),
    ):
        found = [canonical(data, kind, replace, by_hand) for data in messages]
        while direction == "<" and found and found[-1].kind in _NOT_AWAITED:
            found.pop()
        lines += [message.line(direction, width) for message in found]
    if stream.end:
        lines.append(replace(f"-- ended with {stream.end}"))
    return lines
