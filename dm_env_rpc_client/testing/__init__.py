"""What tests of clients and servers need: a scripted server, and servers in processes.

`fixtures.py` is what the pytest plugin does. May import `client`, `server` and below.
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
