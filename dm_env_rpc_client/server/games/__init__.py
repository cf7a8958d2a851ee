"""Example environments for tutorials and tests, included in the package."""

# `catch.py` is a dm_env.Environment for one agent, `race.py` a `Game` for several.
