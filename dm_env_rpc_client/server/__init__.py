"""The server for dm_env_rpc clients; see `serve`.

The guide is `docs/how-to/serve.md`.
"""

# Read `worlds/world.py` first: the interface of served worlds. `options.py` has the options,
# `session.py` answers the requests of one stream, `serving.py` puts worlds behind a listener,
# `factories.py` validates the sources of environments, `single_instance.py` serves an existing
# environment, `processes/` puts worlds into other processes, `games/` holds example environments.
#
# Names are imported at their first use: the command line reads `options.py`, and must not import
# more than that.

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
