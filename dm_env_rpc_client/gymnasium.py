"""Registration of remote environments with Gymnasium, on import.

`gymnasium.make("dm_env_rpc_client.gymnasium:Remote-v0", address=...)` imports this module, by
Gymnasium's own convention for ids of other packages; so does `gymnasium.make_vec`. The registered
classes are in `adaptors/gymnasium/`. Needs the extra `gymnasium`.
"""

from __future__ import annotations

from dm_env_rpc_client.extras import importing

with importing("gymnasium", "Remote-v0 needs"):
    import gymnasium

__all__: list[str] = []

gymnasium.register(
    "Remote-v0",
    entry_point="dm_env_rpc_client.adaptors.gymnasium:make_remote",
    vector_entry_point="dm_env_rpc_client.adaptors.vector:RemoteVectorEnv",
)
