"""Bridges from other environment protocols to `dm_env.Environment`.

`gym_socket` is gym-socket-api, a byte protocol over TCP; `env_c_api` is EnvCApi, a C interface.
The resulting environments can be served by `server.serve`, explored in a notebook, or stepped
through Gymnasium's interface.
"""

# Read the `environment.py` of the bridge in question first.
