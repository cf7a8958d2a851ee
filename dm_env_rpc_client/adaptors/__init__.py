"""Remote environments behind the interfaces of other libraries.

One file or folder and one extra for each library, named after it. Read `gymnasium.py` first. May
import `environment` and what it imports.
"""
