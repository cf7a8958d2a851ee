"""Joined connections as environments: everything that `make` returns.

The guide is `docs/how-to/environments.md`.
"""

# Read `base_adaptor.py` first: actions to requests, answers to TimeSteps, without I/O.
# `dm_env_adaptor.py` and `async_dm_env_adaptor.py` send and receive steps. All other sequences of
# requests are exchanges (`exchanges.py`), written once for threads and for asyncio:
# `joined_adaptor.py` resets, restarts and closes, `worlds.py` creates and joins worlds, also for
# `async_worlds.py`, and `world_ends.py` leaves and destroys them, also if nobody closed the
# environment. `make_options.py` says how to make one; `batched.py` stacks several environments.
# `server_location.py` says where a server is and launches it, and `restarting.py` says what becomes
# of an environment that is lost.
