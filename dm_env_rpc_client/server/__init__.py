"""Serving environments to dm_env_rpc clients; see `serve`.

The guide is `docs/how-to/serve.md`.
"""

# Read `worlds/world.py` first: the interface of what is served. `options.py` says how to serve,
# `session.py` answers the requests of one stream, `serving.py` puts worlds behind a listener,
# `factories.py` looks at what is served, `single_instance.py` serves an environment that exists
# already, `processes/` puts worlds into other processes, `games/` holds the example environments.
#
# The names are imported when they are first used: the command line reads `options.py`, and must not
# import more than that.

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
