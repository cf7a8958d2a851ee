"""Remote environments behind the interfaces of other libraries, one file or folder for each.

The guide is `docs/how-to/gymnasium.md`.
"""

# Read `gymnasium.py` first.
