"""Environments behind the C interface EnvCApi, as `EnvCApiEnvironment`.

Read `environment.py` first: it drives a `Runner`, in this process (`runner.py`) or in a child
process (`process_runner.py`; the child's side is `child.py`, and `child_pipe.py` and
`child_calls.py` are the messages between the two). A runner calls a library through
`context.py`, one method for each C function; `library.py` loads it, `declarations.py` has the
C structs, `memory.py` copies from the library's memory, within `tensors.Limits`.

May import `errors`, `runtime` and `tensors`; only this room imports cffi.

## A library as an environment

EnvCApi is a C interface of engines: a header `env_c_api.h`, of which 1.4, 2.0, 2.1 and 2.2 are
known. A library that offers environments through it needs no C code of yours, only the extra `c`:

```python
from dm_env_rpc_client.bridges.env_c_api import EnvCApiEnvironment

with EnvCApiEnvironment(
    "./libengine.so",
    "engine_connect",  # the function that it exports
    version="1.4",  # of the env_c_api.h that it was compiled with
    settings={"width": 32, "height": 24},
    isolated=True,  # in a child process: if it crashes, that is an exception here
) as env:
    timestep = env.reset()
    print(env.action_spec(), timestep.observation.keys())
```

Some engines declare 0 dimensions for scalars, which here are arrays of any shape then;
`shapes={"WORLD.*": ()}` says what they are, by name or pattern. A value of another shape is an
error.

`seed` and `episode` are settings; the library's properties go through the properties extension, and
what it reports as a failure is a `LibraryError`. From a shell, it is served with one world for each
context, each in a process of its own:

```sh
dm-env-rpc serve --c-library ./libengine.so:engine_connect --c-version 1.4
```
"""

from dm_env_rpc_client.bridges.env_c_api.environment import EnvCApiEnvironment
from dm_env_rpc_client.bridges.env_c_api.events import Event
from dm_env_rpc_client.bridges.env_c_api.library_properties import PropertyAttributes
from dm_env_rpc_client.bridges.env_c_api.serving import environment_factory

__all__ = ["EnvCApiEnvironment", "Event", "PropertyAttributes", "environment_factory"]
