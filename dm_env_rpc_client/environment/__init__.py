"""Joined connections as environments: everything that `make` returns.

The guide is `docs/how-to/environments.md`.
"""

# Read `base_adaptor.py` first: actions to requests, answers to TimeSteps, without I/O.
# `dm_env_adaptor.py` and `async_dm_env_adaptor.py` send and receive, `joined_adaptor.py` begins and
# closes, `make_options.py` says how to make one; `worlds.py` and
# `async_worlds.py` create and join worlds; `forgotten.py` is for environments that nobody closed;
# `batched.py` stacks several environments. `sites.py` says where a server is and launches it, and
# `restarting.py` says what becomes of an environment that is lost.
