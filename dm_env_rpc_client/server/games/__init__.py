"""The example environments that the package ships, for tutorials and tests."""

# `catch.py` is a dm_env.Environment for one agent, `race.py` a `Game` for several.
