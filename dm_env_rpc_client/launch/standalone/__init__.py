"""A server in one file, for places where this package cannot be installed.

`dm_env_rpc_server.py` is that file. It imports the standard library and NumPy only, runs on CPython
3.6 to 3.14, and is copied or sent to where a simulator lives. This package never imports it.
"""

from pathlib import Path

__all__ = ["FILE"]

FILE = str(Path(__file__).with_name("dm_env_rpc_server.py"))
"""Where the file is."""
