"""Keys bound on the command line: `--keys left=0`, `--keys w=arm.torque:+=0.1`."""

from __future__ import annotations

import re
from typing import NamedTuple

from dm_env_rpc_client.cli.failures import UsageError

__all__ = ["IDLE", "NAMED_KEYS", "Binding", "parse_binding"]

NAMED_KEYS = frozenset(
    ["backspace", "backtab", "down", "enter", "escape", "left", "right", "space", "tab", "up"]
)
"""All other keys have the name of their character."""

IDLE = "idle"
"""In place of a key: the value that a control has while no key is pressed."""

_FORM = re.compile(r"(?P<key>.|\w+)=(?:(?P<control>[^:=]+):)?(?P<change>[+-]=)?(?P<value>.*)", re.S)


class Binding(NamedTuple):
    """The effect of a key.

    Attributes:
      key: a character, one of `NAMED_KEYS`, or `IDLE`.
      control: the label of the control that it changes; None for the only one.
      change: "+=" or "-=" if it adds or subtracts, otherwise "".
      value: the text of the value.
    """

    key: str
    control: str | None
    change: str
    value: str


def parse_binding(text: str) -> Binding:
    """Reads KEY=VALUE or KEY=ACTION:VALUE; += or -= before the value adds or subtracts it.

    Raises:
      UsageError: the text has another form, or the key is unknown.
    """
    found = _FORM.fullmatch(text)
    if found is None or not found["value"]:
        raise UsageError(
            f"a key binding looks like left=0, w=throttle:1 or w=throttle:+=0.1, got {text!r}"
        )
    key = found["key"]
    if len(key) != 1 and key not in NAMED_KEYS and key != IDLE:
        known = ", ".join(sorted(NAMED_KEYS))
        raise UsageError(f"unknown key {key!r}; a key is a character, one of {known}, or {IDLE}")
    key = "space" if key == " " else key
    return Binding(key, found["control"], found["change"] or "", found["value"])
