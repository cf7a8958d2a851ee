"""Servers for tests: one that follows a script, and ones that run in processes.

`fixtures.py` has the bodies of the pytest plugin's fixtures. Read `scripted_server.py` first. May
import `client`, `server` and below.
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
