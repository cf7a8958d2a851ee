"""Serving environments to dm_env_rpc clients; see `serve`."""

from dm_env_rpc_client.server.catch import Catch
from dm_env_rpc_client.server.hosting import Server, serve

__all__ = ["Catch", "Server", "serve"]
