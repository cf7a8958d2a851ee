"""Method calls and attributes of Gymnasium environments at a server.

They travel as properties of a world, whose values are JSON of `adaptors.gymnasium.value_json`:
`gymnasium.call.NAME` is read, and written before with `args`, `kwargs` and `rows` if there are
any; `gymnasium.set.NAME` is written with `values` and `rows`. `gymnasium.kind.NAME` of a single
environment is "method" or "attribute". A server has those of the names that it allows.
"""

# `served.py` is the server's end, `remote.py` the client's.

CALL = "gymnasium.call"
"""The parent of the properties with a method's results in each row."""

KIND = "gymnasium.kind"
"""The parent of the properties that say whether the name is one of a method."""

METHOD, ATTRIBUTE = "method", "attribute"

SET = "gymnasium.set"
"""The parent of the properties that set an attribute in each row."""
