"""Remote environments, written in any language, as `dm_env.Environment` objects.

`make` connects to a dm_env_rpc server, creates a world and joins it. `dm_env_rpc_pb2` and
`properties_pb2` contain the protocol's messages.

`__init__.pyi` lists the public names. Each public name is imported on first use, because every
pytest run loads this package for its pytest plugin.
"""

import logging

import lazy_loader

from dm_env_rpc_client.version import __version__ as __version__

# By default nothing is printed: programs that want the log add their own handlers.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
