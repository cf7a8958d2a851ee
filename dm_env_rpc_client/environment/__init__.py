"""Joined connections as environments: everything that `make` returns.

Read `base_adaptor.py` first: actions to requests, answers to TimeSteps, without I/O.
`dm_env_adaptor.py` and `async_dm_env_adaptor.py` send and receive; `worlds.py` and
`async_worlds.py` create and join worlds; `batched.py` stacks several environments. May import
`client`, `protocol`, `tensors` and what they import.
"""
