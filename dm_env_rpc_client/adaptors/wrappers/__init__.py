"""Wrappers of environments that dm_env lacks, each for one environment and for a batch.

Each is a `dm_env.Environment` around another. The guide is `docs/how-to/gymnasium.md`.
"""

# Read `wrapper.py` first.

from dm_env_rpc_client.adaptors.wrappers.action_repeat import ActionRepeat
from dm_env_rpc_client.adaptors.wrappers.action_scale import ActionScale
from dm_env_rpc_client.adaptors.wrappers.float_cast import FloatCast
from dm_env_rpc_client.adaptors.wrappers.observation_stack import ObservationStack
from dm_env_rpc_client.adaptors.wrappers.wrapper import Wrapper

__all__ = ["ActionRepeat", "ActionScale", "FloatCast", "ObservationStack", "Wrapper"]
