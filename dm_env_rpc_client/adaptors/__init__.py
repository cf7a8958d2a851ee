"""Adaptors that give remote environments the interfaces of other libraries.

The guide to these adaptors is `docs/how-to/gymnasium.md`.
"""

# Read `gymnasium/` first. Adaptors for servers import `server` and never the client; servers find
# them by name, see `system/foreign_environments.py`. `minari.py` exports recordings. `places.py`
# says in which of these modules an adaptor is, to users who look for it in another.

from typing import TYPE_CHECKING

from dm_env_rpc_client.adaptors.places import pointing

if not TYPE_CHECKING:  # It would make type checkers accept every name.
    __getattr__ = pointing(__name__)
