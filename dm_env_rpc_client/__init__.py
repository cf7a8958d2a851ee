"""Remote environments, in any language, as `dm_env.Environment`.

`make` connects to a dm_env_rpc server, creates a world and joins it, in one line.
`dm_env_rpc_pb2` and `properties_pb2` are the modules of the protocol's messages.

The public names stand once, in `__init__.pyi`. Each is imported when it is first used: the
pytest plugin is a part of this package and is loaded by every pytest run.
"""

import logging

import lazy_loader

from dm_env_rpc_client.version import __version__ as __version__

# What is logged is for programs that ask for it.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
