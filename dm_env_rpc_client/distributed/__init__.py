"""Rollouts and servers over many processes and machines, with Ray.

The guide is `docs/how-to/ray.md`.
"""

# Read `worker.py` first: a policy that acts in some environments, which `environments.py` opens and
# steps. `trajectories.py` is what it delivers, `rollouts.py` has all workers in one process,
# `ray_rollouts.py` each in an actor. `ray_servers.py` starts servers.

from dm_env_rpc_client.distributed.environments import RemoteEnvironments
from dm_env_rpc_client.distributed.ray_rollouts import Loss, RayRollouts
from dm_env_rpc_client.distributed.ray_servers import RayServers
from dm_env_rpc_client.distributed.rollouts import LocalRollouts, Rollouts
from dm_env_rpc_client.distributed.trajectories import Batch
from dm_env_rpc_client.distributed.worker import PolicyStep

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
