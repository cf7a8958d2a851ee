"""Adaptors between PettingZoo and remote worlds, in both directions. Needs the extra `pettingzoo`.

env = RemoteParallelEnv("localhost:50051")
observations, infos = env.reset(seed=1)
"""

# Read `parallel_env.py` first: the agents of a remote world for PettingZoo, each a seat of
# `seats.py`. Servers use the other direction, `game.py`, and describe it with `description.py`.
#
# Names are imported on first use, because a server must not import the client.

import lazy_loader

from dm_env_rpc_client.adaptors.places import pointing
from dm_env_rpc_client.extras import importing

with importing("pettingzoo", "the adaptors of PettingZoo need"):
    import gymnasium as _gymnasium  # noqa: F401
    import pettingzoo as _pettingzoo  # noqa: F401

_own, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = pointing(__name__, _own)
