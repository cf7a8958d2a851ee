"""Worlds hosted by a server, for one or several agents, and their registry.

A world passes values by name to environments and games, and does not depend on streams.
"""

# Read `world.py` first: the interface. `environment_world.py` is one for a dm_env.Environment,
# `shared_world.py` one for a `Game`; `making.py` makes them, and `world_registry.py` holds all
# worlds of a process by name.
