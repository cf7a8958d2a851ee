"""A single-file server, for machines and interpreters where this package cannot be installed.

`dm_env_rpc_server.py` imports only the standard library and NumPy, and runs on CPython 3.6 to 3.14.
Copy the file to the machine or container where the simulator runs. This package never imports the
file.
"""

from pathlib import Path

__all__ = ["FILE"]

FILE = str(Path(__file__).with_name("dm_env_rpc_server.py"))
"""The path of the single-file server."""
