"""Which state follows which, written down from the protocol's documents.

Tests compare the package with this table; nothing of the package is in it. "States" of the overview
has the states; StepRequest, ResetRequest and ResetWorldRequest of the reference, what may follow.
"""

from __future__ import annotations

_LETTERS = {
    "n": "NOT_JOINED",
    "j": "JOINED",
    "r": "RUNNING",
    "t": "TERMINATED",
    "i": "INTERRUPTED",
}

# A row: the request, then the possible states after it for each state before it; "-" where the
# request is refused.
_TABLE = """
    before         n   j   r    t   i
    create_world   n   j   r    t   i
    join_world     j   -   -    -   -
    step           -   r   rti  r   r
    reset          -   j   i    t   i
    reset_world    n   j   ri   t   i
    leave_world    n   n   n    n   n
    destroy_world  n   j   r    t   i
    extension      n   j   r    t   i
"""

_BEFORE, *_ROWS = (line.split() for line in _TABLE.strip().splitlines())

NAMES = tuple(_LETTERS.values())
"""The names of the states."""

FOLLOWS: dict[tuple[str, str], frozenset[str]] = {
    (_LETTERS[before], request): frozenset(_LETTERS[letter] for letter in after if letter != "-")
    for request, *row in _ROWS
    for before, after in zip(_BEFORE[1:], row, strict=True)
}
"""The possible states after a request, by the state before it and the name of the request."""
