"""Servers that are started for a program and end with it: processes and containers."""

from dm_env_rpc_client.launch.containers import from_docker
from dm_env_rpc_client.launch.launched import LOG_BYTES, Launch
from dm_env_rpc_client.launch.processes import from_process, from_python

__all__ = ["LOG_BYTES", "Launch", "from_docker", "from_process", "from_python"]
