"""Adaptors between Gymnasium and dm_env, in both directions.

This package requires the `gymnasium` extra.

import gymnasium
env = gymnasium.make("dm_env_rpc_client.gymnasium:Remote-v0", address="localhost:50051")
"""

# Read `from_dm_env.py` first: a remote environment for Gymnasium. `vector_env.py` steps many, with
# `row_spaces.py` and `episode_rows.py`. Servers use the other direction, `to_dm_env.py`, and
# `proxy.py` is the client's end of it. `spaces.py` converts specs to spaces, `elements.py` spaces
# to specs; `space_json.py` and `value_json.py` define the JSON on the wire.
#
# Names are imported on first use, because a server must not import the client.

import lazy_loader

from dm_env_rpc_client.adaptors.places import pointing
from dm_env_rpc_client.extras import importing

with importing("gymnasium", "the adaptors of Gymnasium need"):
    import gymnasium as _gymnasium  # noqa: F401

_own, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = pointing(__name__, _own)
