"""Servers in processes or containers, launched by a program and stopped when the program ends.

The guide to launching servers is `docs/how-to/launch.md`.
"""

# Read `launched.py` first: a launched server. `processes.py` and `containers.py` launch servers,
# `standalone/` is the single-file server that both use where this package cannot be installed,
# `ports.py` chooses free ports and inspects which processes listen on them, `container_process.py`
# is the process that owns a container, and `specs.py` parses `process:...`, `docker:...` and
# `python:...`.

from dm_env_rpc_client.launch.containers import from_docker
from dm_env_rpc_client.launch.launched import LOG_BYTES, Launch
from dm_env_rpc_client.launch.processes import from_process, from_python

__all__ = ["LOG_BYTES", "Launch", "from_docker", "from_process", "from_python"]
