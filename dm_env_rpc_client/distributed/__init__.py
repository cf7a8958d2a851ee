"""Rollouts and servers that Ray distributes over many processes and machines.

The guide is `docs/how-to/ray.md`.
"""

# Read `rollouts.py` first: workers in one process, whose policies act in environments opened and
# stepped by `environments.py`. `trajectories.py` defines the resulting batches. `on_ray.py` runs
# workers and servers in Ray actors.

from dm_env_rpc_client.distributed.environments import RemoteEnvironments
from dm_env_rpc_client.distributed.on_ray import Loss, RayRollouts, RayServers
from dm_env_rpc_client.distributed.rollouts import LocalRollouts, PolicyStep, Rollouts
from dm_env_rpc_client.distributed.trajectories import Batch

__all__ = [
    "Batch",
    "LocalRollouts",
    "Loss",
    "PolicyStep",
    "RayRollouts",
    "RayServers",
    "RemoteEnvironments",
    "Rollouts",
]
