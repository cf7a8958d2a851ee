"""Other environment protocols, joined to dm_env: each gives a `dm_env.Environment`.

`gym_socket` is gym-socket-api, a byte protocol over TCP; `env_c_api` is EnvCApi, a C interface.
Bridges know dm_env and the pure rooms; they never load grpc.
"""
