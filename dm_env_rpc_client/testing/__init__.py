"""Servers for tests: one that follows a script, and a proxy that stands for a bad network.

The guide is `docs/how-to/pytest.md`.
"""

# Read `scripted_server.py` first.
#
# The names are imported when they are first used: every pytest run loads `pytest_plugin.py`, and
# must not import more than that.

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
