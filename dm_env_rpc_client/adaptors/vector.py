"""`RemoteVectorEnv` of `adaptors.gymnasium`, and its dm_env counterpart, `BatchedEnvironment`.

This module requires the `gymnasium` extra.
"""

from typing import TYPE_CHECKING

from dm_env_rpc_client.adaptors.gymnasium.vector_env import RemoteVectorEnv
from dm_env_rpc_client.adaptors.places import pointing
from dm_env_rpc_client.environment.batched import BatchedEnvironment

__all__ = ["BatchedEnvironment", "RemoteVectorEnv"]

if not TYPE_CHECKING:  # It would make type checkers accept every name.
    __getattr__ = pointing(__name__)
