"""Bridges from other environment protocols to `dm_env.Environment`.

`gym_socket` supports gym-socket-api, a byte protocol over TCP; `env_c_api` supports EnvCApi, a C
interface. The resulting environments can be served by `server.serve`, explored in a notebook, or
stepped through Gymnasium's interface.
"""

# Read the `environment.py` of the bridge in question first.
