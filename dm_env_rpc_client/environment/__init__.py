"""Environments whose connections are joined to worlds, including all kinds that `make` returns.

The guide to these environments is `docs/how-to/environments.md`.
"""

# Read `base_adaptor.py` first: actions to requests, answers to TimeSteps, without I/O.
# `dm_env_adaptor.py` and `async_dm_env_adaptor.py` send and receive steps. All other sequences of
# requests are exchanges (`exchanges.py`), written once for threads and for asyncio:
# `joined_adaptor.py` resets, restarts and closes, `worlds.py` creates and joins worlds, also for
# `async_worlds.py`, and `world_ends.py` leaves and destroys them, even for unclosed environments.
# `make_options.py` has the options of `make`; `batched.py` stacks several environments.
# `server_location.py` locates a server or launches it, and `restarting.py` has the state of a lost
# environment.
