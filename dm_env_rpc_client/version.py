"""The version of this package, which may not be installed, and the systems that it runs on."""

import sys

__version__ = "0.1.0"

if sys.platform not in ("linux", "darwin"):
    # Sockets, signals, forks and limits of processes are those of POSIX.
    raise ImportError(
        f"dm_env_rpc_client {__version__} runs on Linux and macOS; this system is "
        f"{sys.platform!r}. On Windows, use the Windows Subsystem for Linux."
    )
