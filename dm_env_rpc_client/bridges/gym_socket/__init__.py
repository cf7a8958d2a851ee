"""gym-socket-api, a byte protocol over TCP, joined to dm_env in both directions."""

from dm_env_rpc_client.bridges.gym_socket.environment import GymSocketEnvironment
from dm_env_rpc_client.bridges.gym_socket.fields import Limits
from dm_env_rpc_client.bridges.gym_socket.server import Server, serve

__all__ = ["GymSocketEnvironment", "Limits", "Server", "serve"]
