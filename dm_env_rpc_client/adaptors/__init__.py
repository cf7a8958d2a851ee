"""Remote environments behind the interfaces of other libraries, one file or folder for each.

The guide is `docs/how-to/gymnasium.md`.
"""

# Read `gymnasium/` first. What converts environments for servers imports `server` and no client;
# servers find it by its name, see `system/foreign_environments.py`. `minari.py` exports recordings.
