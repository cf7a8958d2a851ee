"""Environments behind the C interface EnvCApi, as `EnvCApiEnvironment`.

The guide is `docs/how-to/c-libraries.md`.
"""

# Read `environment.py` first: it drives a `Runner`, in this process (`runner.py`) or in a child
# process (`process_runner.py`; the child's side is `child.py`, and `child_pipe.py` and
# `child_calls.py` are the messages between the two). A runner calls a library through
# `context.py`, one method for each C function; `library.py` loads it, `declarations.py` has the C
# structs, `memory.py` copies from the library's memory, within `tensors.Limits`.

from dm_env_rpc_client.bridges.env_c_api.environment import EnvCApiEnvironment
from dm_env_rpc_client.bridges.env_c_api.events import Event
from dm_env_rpc_client.bridges.env_c_api.library_properties import PropertyAttributes
from dm_env_rpc_client.bridges.env_c_api.serving import environment_factory

__all__ = ["EnvCApiEnvironment", "Event", "PropertyAttributes", "environment_factory"]
