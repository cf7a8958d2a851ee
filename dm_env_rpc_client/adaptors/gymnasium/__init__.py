"""Between Gymnasium and dm_env, in both directions. Needs the extra `gymnasium`.

import gymnasium
env = gymnasium.make("dm_env_rpc_client.gymnasium:Remote-v0", address="localhost:50051")
"""

# Read `from_dm_env.py` first: a remote environment for Gymnasium. `vector_env.py` is many of them,
# with `row_spaces.py` and `episode_rows.py`. `to_dm_env.py` is the other direction, which servers
# use, and `proxy.py` a remote environment that is such a one. `spaces.py` makes spaces of specs,
# `elements.py` specs of spaces; `space_json.py` and `value_json.py` is what travels as JSON.
#
# The names are imported when they are first used: a server must not import the client.

import lazy_loader

from dm_env_rpc_client.extras import importing

with importing("gymnasium", "the adaptors of Gymnasium need"):
    import gymnasium as _gymnasium  # noqa: F401

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
