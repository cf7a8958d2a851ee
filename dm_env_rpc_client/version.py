"""The version of this package, which may not be installed, and the systems that it runs on."""

import sys

__version__ = "0.1.0"

PUBLISHED = False
"""Whether a package index has this package.

Errors, the documentation and new projects say accordingly how to install it: from an index, or from
a clone.
"""

if sys.platform not in ("linux", "darwin"):
    # Sockets, signals, forks and limits of processes are those of POSIX.
    raise ImportError(
        f"dm_env_rpc_client {__version__} runs on Linux and macOS; this system is "
        f"{sys.platform!r}. On Windows, use the Windows Subsystem for Linux."
    )
