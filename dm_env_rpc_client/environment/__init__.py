"""Joined connections as environments: all that `make` gives.

Read `base_adaptor.py` first: actions to requests, answers to TimeSteps, without I/O.
`dm_env_adaptor.py` and `async_dm_env_adaptor.py` send and receive; `worlds.py` creates and joins
worlds; `batched.py` stacks several environments. May import `client`, `protocol`, `tensors`.
"""
