"""Servers for tests: one that follows a script, and ones that run in processes.

`fixtures.py` has the bodies of the pytest plugin's fixtures. Read `scripted_server.py` first. May
import `client`, `server` and below.

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

Without pytest, a `ServerProcess` starts a command, waits until it accepts connections and stops it
with all its children:

```python
import sys

import dm_env_rpc_client
from dm_env_rpc_client.testing import ServerProcess

command = f"{sys.executable} -m dm_env_rpc_client.cli serve catch --address localhost:"
process = ServerProcess(command + "{port}")
try:
    with dm_env_rpc_client.make(process.address) as env:
        print(env.reset().step_type.name)  # FIRST
finally:
    process.stop()
```

## A scripted server

To test a client, a `ScriptedServer` answers exactly as it is told to:

```python
from dm_env_rpc_client import connect, dm_env_rpc_pb2
from dm_env_rpc_client.testing import ScriptedServer, answering

script = answering(dm_env_rpc_pb2.CreateWorldResponse(world_name="arena"))
with ScriptedServer(script) as server, connect(server.address) as connection:
    print(connection.send(dm_env_rpc_pb2.CreateWorldRequest()).world_name)  # arena
```
"""

from dm_env_rpc_client.testing.scripted_server import (
    Request,
    Response,
    Script,
    ScriptedServer,
    answering,
    echo,
)
from dm_env_rpc_client.testing.server_process import ServerProcess, ServerProcessError

__all__ = [
    "Request",
    "Response",
    "Script",
    "ScriptedServer",
    "ServerProcess",
    "ServerProcessError",
    "answering",
    "echo",
]
