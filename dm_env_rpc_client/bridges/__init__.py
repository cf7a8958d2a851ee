"""Other environment protocols, joined to dm_env: each gives a `dm_env.Environment`.

`gym_socket` is gym-socket-api, a byte protocol over TCP; `env_c_api` is EnvCApi, a C interface.
May import dm_env, `errors`, `runtime`, `tensors` and the addresses of `transports`; never grpc.
Read the `environment.py` of the bridge in question first.
"""
