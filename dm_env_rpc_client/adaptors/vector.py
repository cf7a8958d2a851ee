"""A gymnasium.vector.VectorEnv that runs remote environments; it requires the `gymnasium` extra.

import gymnasium
envs = gymnasium.make_vec(
    "dm_env_rpc_client.gymnasium:Remote-v0", num_envs=16, address="localhost:50051"
)

`BatchedEnvironment` is the dm_env counterpart of `RemoteVectorEnv` and does not need Gymnasium.
"""

from dm_env_rpc_client.adaptors.gymnasium.vector_env import RemoteVectorEnv
from dm_env_rpc_client.environment.batched import BatchedEnvironment

__all__ = ["BatchedEnvironment", "RemoteVectorEnv"]
