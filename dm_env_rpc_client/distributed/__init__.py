"""Rollouts and servers over many processes and machines, with Ray.

The guide is `docs/how-to/ray.md`.
"""

# Read `rollouts.py` first: a policy that acts in some environments, which `environments.py` opens
# and steps; all workers in one process. `trajectories.py` is what they deliver. `on_ray.py` has
# each worker in an actor, and servers in actors.

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
