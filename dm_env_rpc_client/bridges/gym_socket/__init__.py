"""A bridge between gym-socket-api, a byte protocol over TCP, and dm_env, in both directions.

`GymSocketEnvironment` is the client, and `serve` starts a server. The guide to this bridge is
`docs/how-to/gym-socket.md`. The bridge requires the extra `gymnasium`.
"""

# Read `packets.py` first: it lists the packets and their answers, and encodes them as bytes.
# `space_json.py` encodes Gymnasium's spaces and elements as JSON. Neither does I/O. Above them
# are `connection.py` and `environment.py` for the client, and `hosted_environment.py`,
# `server_session.py`, `session_runner.py` and `server.py` for the server, whose sessions step a
# `gymnasium.Env`. Only `tcp.py` touches sockets.

from dm_env_rpc_client.extras import importing

with importing("gymnasium", "gym-socket-api needs"):
    from dm_env_rpc_client.bridges.gym_socket.environment import GymSocketEnvironment
    from dm_env_rpc_client.bridges.gym_socket.packets import Limits
    from dm_env_rpc_client.bridges.gym_socket.server import Server, serve

__all__ = ["GymSocketEnvironment", "Limits", "Server", "serve"]
