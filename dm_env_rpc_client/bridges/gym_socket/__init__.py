"""gym-socket-api, a byte protocol over TCP, joined to dm_env in both directions.

`GymSocketEnvironment` is the client, `serve` the server. The guide is
`docs/how-to/gym-socket.md`.
"""

# Read `packets.py` first: it lists the packets and their answers. `packet_codec.py` makes bytes of
# them, `spaces.py` and `samples.py` translate spaces and their elements; none of these does I/O.
# Above them are `connection.py` and `environment.py` for the client, and `server_session.py`,
# `session_runner.py` and `server.py` for the server. Only `tcp.py` touches sockets.

from dm_env_rpc_client.bridges.gym_socket.environment import GymSocketEnvironment
from dm_env_rpc_client.bridges.gym_socket.packet_codec import Limits
from dm_env_rpc_client.bridges.gym_socket.server import Server, serve

__all__ = ["GymSocketEnvironment", "Limits", "Server", "serve"]
