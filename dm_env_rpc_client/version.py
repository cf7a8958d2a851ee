"""The version of this package, readable without an installation, and the supported systems."""

import sys

__version__ = "0.1.0"

PUBLISHED = False
"""Whether this package is published on a package index.

Errors, the documentation and new projects choose the installation command by it: from an index, or
from a clone.
"""

if sys.platform not in ("linux", "darwin"):
    # Sockets, signals, forks and process limits are used as POSIX defines them.
    raise ImportError(
        f"dm_env_rpc_client {__version__} runs on Linux and macOS; this system is "
        f"{sys.platform!r}. On Windows, use the Windows Subsystem for Linux."
    )
