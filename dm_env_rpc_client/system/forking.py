"""Objects that are told when they find themselves in a forked child.

A forked child has copies of the parent's objects, but none of its threads, and sockets that it
shares with the parent. Whatever it did to them would be seen by the parent.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """An object that belongs to one process."""

    def after_fork_in_child(self) -> None:
        """Gives up what belongs to the parent, without touching what is shared with it.

        Called in the only thread of the child. Locks may be locked for ever, by threads that do
        not exist here.
        """


_registered: weakref.WeakSet[Forkable] = weakref.WeakSet()


def register(forkable: Forkable) -> None:
    """Has `after_fork_in_child` called after each fork, for as long as the object lives."""
    _registered.add(forkable)


def _after_fork_in_child() -> None:
    errors = []
    for forkable in list(_registered):
        try:
            forkable.after_fork_in_child()
        except Exception as error:  # The others are told all the same.
            errors.append(error)
    if errors:
        raise errors[0]  # Python reports it as an exception that nobody can take.


os.register_at_fork(after_in_child=_after_fork_in_child)
