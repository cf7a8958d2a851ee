"""Environments in a notebook: `explore`, and rich displays by `%load_ext`.

    %load_ext dm_env_rpc_client.notebook

shows specs and TimeSteps as tables and images from then on. Needs the extra `notebook`.
"""

try:
    from dm_env_rpc_client.notebook.explorer import Explorer, explore
    from dm_env_rpc_client.notebook.formatters import (
        load_ipython_extension,
        unload_ipython_extension,
    )
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error}; notebooks need the extra: pip install 'dm-env-rpc-client[notebook]'",
        name=error.name,
    ) from error

__all__ = ["Explorer", "explore", "load_ipython_extension", "unload_ipython_extension"]
