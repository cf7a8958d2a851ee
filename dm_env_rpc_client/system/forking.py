"""Callbacks that run in a forked child process for objects that the fork has copied.

A forked child has copies of the parent's objects but none of the parent's threads. The child also
shares the parent's sockets, so any use of them would affect the parent.
"""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from dm_env_rpc_client.system.locks import make_lock

_T = TypeVar("_T")

_registered: weakref.WeakKeyDictionary[Any, Callable[[Any], object]] = weakref.WeakKeyDictionary()


def register(owner: _T, give_up: Callable[[_T], object]) -> None:
    """Register a function to be called in each forked child as long as an object exists.

    Args:
      owner: the object, which belongs to one process.
      give_up: called with it in the only thread of the child. It abandons the parent's resources,
        without using shared ones. Locks may stay locked by threads that do not exist here.
    """
    _registered[owner] = give_up


# Some of these objects may be garbage. A child that frees objects of grpcio waits forever for
# threads that do not exist in it; `give_up` keeps these objects alive. So from the fork on garbage
# collection is off until every `give_up` has run.
_collecting = make_lock()
_forks = 0
_collects = False


def _before_fork() -> None:
    global _forks, _collects
    with _collecting:
        if not _forks:
            _collects = gc.isenabled()
        _forks += 1
        gc.disable()


def _after_fork_in_parent() -> None:
    global _forks
    with _collecting:
        _forks -= 1
        if not _forks and _collects:
            gc.enable()


def _after_fork_in_child() -> None:
    global _forks, _collecting
    _collecting = make_lock()
    _forks = 0
    errors = []
    try:
        for owner, give_up in list(_registered.items()):
            try:
                give_up(owner)
            except Exception as error:  # The others must be notified all the same.
                errors.append(error)
    finally:
        if _collects:
            gc.enable()
    if errors:
        raise errors[0]  # Python reports it as an unraisable exception.


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
