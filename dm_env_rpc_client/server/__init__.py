"""Serving environments to dm_env_rpc clients; see `serve`.

Read `world.py` first: what is served. `session.py` speaks the protocol for one connection,
`hosting.py` accepts connections. May import `protocol`, `transports` and what they import. It
does not know `client`.
"""

from dm_env_rpc_client.server.game import Game
from dm_env_rpc_client.server.games.catch import Catch
from dm_env_rpc_client.server.games.race import Race
from dm_env_rpc_client.server.hosting import Server, serve
from dm_env_rpc_client.server.offered_properties import Properties
from dm_env_rpc_client.server.request_errors import RequestError
from dm_env_rpc_client.server.world import Agent, World

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
