"""Servers for tests: one that follows a script, and a proxy that stands for a bad network.

`fixtures.py` has the bodies of the pytest plugin's fixtures. Read `scripted_server.py` first. May
import `client`, `server` and below.

The names are imported when they are first used: every pytest run loads `pytest_plugin.py`, and must
not import more than that.

## A server in your tests

The package is a pytest plugin. Four fixtures:

- `dm_env_rpc_server`: a function like `server.serve`. The servers that it starts stop at the end of
  the test, which fails with whatever failed in them.
- `dm_env_rpc_address`: the address of a server of yours, in any language, which is started once per
  session and always stopped.
- `dm_env_rpc_connection` and `dm_env_rpc_env`: a connection to that server, and its environment.

```sh
pytest --dm-env-rpc-command "my-server --port={port}"
pytest --dm-env-rpc-address localhost:50051
```

Without pytest, `dm_env_rpc_client.launch` starts servers and ends them.

## A scripted server

To test a client, a `ScriptedServer` answers exactly as it is told to:

```python
from dm_env_rpc_client import connect, dm_env_rpc_pb2
from dm_env_rpc_client.testing import ScriptedServer, answering

script = answering(dm_env_rpc_pb2.CreateWorldResponse(world_name="arena"))
with ScriptedServer(script) as server, connect(server.address) as connection:
    print(connection.send(dm_env_rpc_pb2.CreateWorldRequest()).world_name)  # arena
```

## A bad network

A `FaultProxy` stands between any client and any server, in any language, and forwards what they
send: late (`latency`, `jitter`), slowly (`bandwidth`), or in small pieces (`slice_bytes`). While
connections are open it can reset them (`reset`), let nothing pass for a while (`blackhole`,
`resume`), shut one direction down (`half_close`) and change bytes (`corrupt`). This tries what your
code does if the network fails in the middle of an episode:

```python
from dm_env_rpc_client import ConnectionLostError, DeadlineExceededError, make
from dm_env_rpc_client.server import Catch, serve
from dm_env_rpc_client.testing import FaultProxy

with serve(Catch) as catch, FaultProxy(catch.address, latency=0.01, slice_bytes=1) as proxy:
    with make(proxy.address, request_timeout=5.0) as env:
        env.reset()
        print(env.step({"paddle": 1}).step_type.name)  # MID
        proxy.reset()
        try:
            env.step({"paddle": 1})
        except ConnectionLostError:
            print("the connection was reset")  # the connection was reset
    with make(proxy.address, request_timeout=0.5) as env:
        env.reset()
        proxy.blackhole()
        try:
            env.step({"paddle": 1})
        except DeadlineExceededError:
            print("no answer in time")  # no answer in time
        proxy.resume()
```

TLS goes through it as well. Bytes that are corrupted without TLS may become other valid values: TCP
and HTTP/2 have no checksum against that.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
