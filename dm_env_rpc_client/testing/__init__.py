"""Servers for tests: one that runs a script, and a proxy that simulates a bad network.

The guide is `docs/how-to/pytest.md`.
"""

# Read `scripted_server.py` first.
#
# Names are imported on first use, because every pytest run loads `pytest_plugin.py` and must not
# import more.

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
