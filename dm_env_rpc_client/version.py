"""The version of this package, and a check that the operating system is supported.

The version can be read without installing the package.
"""

import sys

__version__ = "0.1.0"

PUBLISHED = False
"""Whether this package is published on a package index.

This value determines whether error messages, the documentation and new projects show the command
that installs from an index or the one that installs from a clone.
"""

if sys.platform not in ("linux", "darwin"):
    # Sockets, signals, forks and process limits are used as POSIX defines them.
    raise ImportError(
        f"dm_env_rpc_client {__version__} runs on Linux and macOS; this system is "
        f"{sys.platform!r}. On Windows, use the Windows Subsystem for Linux."
    )
