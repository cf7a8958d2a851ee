"""Environments in a notebook: the widget `explore`, and rich displays with `%load_ext`.

    %load_ext dm_env_rpc_client.notebook

From then on, specs and TimeSteps are shown as tables and images. Needs the extra `notebook`. Read
`explorer.py` first. May import `displays`, `environment`, `extensions`, `server` and `tensors`.

## explore

`explore(env)` shows any `dm_env.Environment`: live observations, a control for each action, runs,
keys to play with, rewards and properties.

```python
import dm_env_rpc_client
from dm_env_rpc_client.notebook import explore
from dm_env_rpc_client.server import Catch, serve

server = serve(Catch)
env = dm_env_rpc_client.make(server.address)
explorer = explore(env, labels={"paddle": ["left", "stay", "right"]})
explorer  # the last line of a cell shows it
explorer.close()
env.close()
server.stop()
```

![The explorer](../../notebooks/pictures/explorer.png)

## Rich displays

After `%load_ext dm_env_rpc_client.notebook`, TimeSteps and specs are shown as images, plots and
tables; stacked TimeSteps, as `unroll` returns them, as strips of images. Connections, environments
and servers need no extension.

![Forty TimeSteps of an unroll](../../notebooks/pictures/displays.png)

The six notebooks in the folder `notebooks` go from a first environment to a learning agent, many
environments, a server of your own and the bridges.
"""

from dm_env_rpc_client.errors import install_command

try:
    from dm_env_rpc_client.notebook.explorer import Explorer, explore
    from dm_env_rpc_client.notebook.formatters import (
        load_ipython_extension,
        unload_ipython_extension,
    )
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error}; notebooks need the extra: {install_command('notebook')}",
        name=error.name,
    ) from error

__all__ = ["Explorer", "explore", "load_ipython_extension", "unload_ipython_extension"]
