"""Importing this module registers remote environments with Gymnasium.

`gymnasium.make("dm_env_rpc_client.gymnasium:Remote-v0", address=...)` and `gymnasium.make_vec`
import this module, following Gymnasium's convention for ids in other packages. Import the
registered classes from `adaptors.gymnasium`. This module requires the `gymnasium` extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dm_env_rpc_client.adaptors.places import pointing
from dm_env_rpc_client.extras import importing
from dm_env_rpc_client.system.secrets import Keywords

with importing("gymnasium", "Remote-v0 needs"):
    import gymnasium

__all__: list[str] = []

gymnasium.register(
    "Remote-v0",
    entry_point="dm_env_rpc_client.adaptors.gymnasium:make_remote",
    vector_entry_point="dm_env_rpc_client.adaptors.gymnasium:RemoteVectorEnv",
    # Gymnasium adds the arguments of `make` and `make_vec` to a copy, and shows them in specs and
    # errors.
    kwargs=Keywords(),
)

if not TYPE_CHECKING:  # It would make type checkers accept every name.
    __getattr__ = pointing(__name__)
