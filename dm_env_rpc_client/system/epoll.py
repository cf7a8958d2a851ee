"""What a program lacks whose module `select` has no epoll."""

from __future__ import annotations

import sys

__all__ = ["why_no_epoll"]


def why_no_epoll() -> str:
    """Returns what is needed for epoll, after the word "takes"."""
    if not sys.platform.startswith("linux"):
        return "Linux"
    return (
        "select.epoll, which monkey patching, such as gevent's, has removed from this process; "
        "serve in a process without it"
    )
