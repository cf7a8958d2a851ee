"""`EnvCApiEnvironment` gives access to environments that implement the C interface EnvCApi.

The guide to this bridge is `docs/how-to/c-libraries.md`.
"""

# Read `environment.py` first: it drives a library in this process (`runner.py`) or in another one
# (`child_process`). `runner.py` calls the library through `context.py`, one method for each C
# function; `library.py` loads it, `declarations.py` has the C structs and copies the library's
# memory, within `tensors.Limits`.

from dm_env_rpc_client.bridges.env_c_api.description import Event
from dm_env_rpc_client.bridges.env_c_api.environment import EnvCApiEnvironment, environment_factory
from dm_env_rpc_client.bridges.env_c_api.library_properties import PropertyAttributes

__all__ = ["EnvCApiEnvironment", "Event", "PropertyAttributes", "environment_factory"]
