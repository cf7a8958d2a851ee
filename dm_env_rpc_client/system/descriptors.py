"""Whether this process has file descriptors left: without them most errors name something else."""

from __future__ import annotations

import errno
import os
import resource

__all__ = ["used_up"]


def used_up(needed: int = 1) -> str:
    """Returns what to do about a process that has no descriptors left; "" if it has some.

    Args:
      needed: how many there have to be.
    """
    opened: list[int] = []
    try:
        for _ in range(needed):
            opened.append(os.open(os.devnull, os.O_RDONLY))  # noqa: PERF401
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            return ""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        where = (
            f"this process, which may have {most}" if error.errno == errno.EMFILE else "the system"
        )
        return (
            f"there are no file descriptors left in {where}; close what is not used, or raise the "
            "limit (ulimit -n)"
        )
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return ""
