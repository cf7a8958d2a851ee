"""Calls of methods, and reads and writes of attributes, of Gymnasium environments at a server.

They travel as properties of a world, whose values are JSON of `adaptors.gymnasium.values`:
`gymnasium.call.NAME` is read, and written before with `args`, `kwargs` and `rows` if there are
any; `gymnasium.set.NAME` is written with `values` and `rows`. A server has those of the names that
it allows.
"""

# `served.py` is the server's end, `remote.py` the client's.

CALL = "gymnasium.call"
"""The parent of the properties whose values are what a method returned in each row."""

SET = "gymnasium.set"
"""The parent of the properties that set an attribute in each row."""
