"""Other environment protocols, joined to dm_env: each gives a `dm_env.Environment`.

`gym_socket` is gym-socket-api, a byte protocol over TCP; `env_c_api` is EnvCApi, a C interface.
May import dm_env, `errors`, `runtime`, `tensors`, and of `transports` the addresses and `waiting`;
never grpc. Read the `environment.py` of the bridge in question first.

Each bridge has a guide of its own: `dm_env_rpc_client.bridges.gym_socket` and
`dm_env_rpc_client.bridges.env_c_api`. Since dm_env is between all protocols, everything else
follows: what a bridge returns can be served by `server.serve`, explored in a notebook, or stepped
through Gymnasium's interface.
"""
