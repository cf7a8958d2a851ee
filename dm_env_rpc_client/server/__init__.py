"""Serving environments to dm_env_rpc clients; see `serve`.

The guide is `docs/how-to/serve.md`.
"""

# Read `worlds/world.py` first: the interface of what is served. `session.py` answers the requests
# of one stream, `hosting.py` puts worlds behind a listener, `factories.py` looks at what is served,
# `instances.py` serves an environment that exists already, `processes/` puts worlds into other
# processes, `games/` holds the example environments.

from dm_env_rpc_client.server.activity import ServerStats
from dm_env_rpc_client.server.games.catch import Catch
from dm_env_rpc_client.server.games.race import Race
from dm_env_rpc_client.server.hosting import Server, serve
from dm_env_rpc_client.server.properties.offered import Properties
from dm_env_rpc_client.server.request_errors import RequestError
from dm_env_rpc_client.server.worlds.game import Game
from dm_env_rpc_client.server.worlds.world import Agent, World
from dm_env_rpc_client.transports.credentials import Tls

__all__ = [
    "Agent",
    "Catch",
    "Game",
    "Properties",
    "Race",
    "RequestError",
    "Server",
    "ServerStats",
    "Tls",
    "World",
    "serve",
]
