"""Serving environments to dm_env_rpc clients; see `serve`."""

from dm_env_rpc_client.server.catch import Catch
from dm_env_rpc_client.server.game import Game
from dm_env_rpc_client.server.hosting import Server, serve
from dm_env_rpc_client.server.properties import Properties
from dm_env_rpc_client.server.race import Race
from dm_env_rpc_client.server.world import Agent, RequestError, World

__all__ = [
    "Agent",
    "Catch",
    "Game",
    "Properties",
    "Race",
    "RequestError",
    "Server",
    "World",
    "serve",
]
