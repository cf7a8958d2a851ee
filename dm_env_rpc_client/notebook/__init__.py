"""Tools for environments in notebooks: the widget `explore` and rich displays.

    %load_ext dm_env_rpc_client.notebook

After `%load_ext dm_env_rpc_client.notebook`, specs and TimeSteps are shown as tables and images.
This package requires the `notebook` extra. The guide is `docs/how-to/notebooks.md`.
"""

# Read `explorer.py` first.

from dm_env_rpc_client.extras import importing

with importing("notebook", "notebooks need"):
    from dm_env_rpc_client.notebook.explorer import Explorer, explore
    from dm_env_rpc_client.notebook.formatters import (
        load_ipython_extension,
        unload_ipython_extension,
    )

__all__ = ["Explorer", "explore", "load_ipython_extension", "unload_ipython_extension"]
