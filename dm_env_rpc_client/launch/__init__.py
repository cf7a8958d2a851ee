"""Servers that are started for a program and end with it: processes and containers.

The guide is `docs/how-to/launch.md`.
"""

# Read `launched.py` first: a server that was started. `processes.py` and `containers.py` start
# them, `standalone/` is the server in one file that both put where this package cannot be
# installed, `ports.py` chooses free ports, and looks at what processes do with them,
# `container_process.py` is the process that a container belongs to, and `specs.py` reads
# `process:...`, `docker:...` and `python:...`.

from dm_env_rpc_client.launch.containers import from_docker
from dm_env_rpc_client.launch.launched import LOG_BYTES, Launch
from dm_env_rpc_client.launch.processes import from_process, from_python

__all__ = ["LOG_BYTES", "Launch", "from_docker", "from_process", "from_python"]
