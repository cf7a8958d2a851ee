"""Environments behind the C interface EnvCApi; see `EnvCApiEnvironment`."""

from dm_env_rpc_client.bridges.env_c_api.environment import EnvCApiEnvironment
from dm_env_rpc_client.bridges.env_c_api.events import Event
from dm_env_rpc_client.bridges.env_c_api.library_properties import PropertyAttributes
from dm_env_rpc_client.bridges.env_c_api.serving import environment_factory

__all__ = ["EnvCApiEnvironment", "Event", "PropertyAttributes", "environment_factory"]
