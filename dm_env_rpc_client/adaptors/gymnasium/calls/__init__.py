"""Method calls and attributes of Gymnasium environments at a server.

They travel as properties of a world, whose values are JSON of `adaptors.gymnasium.value_json`. To
call, the client writes `args`, `kwargs` and `rows` to `gymnasium.call.NAME`, if there are any, and
reads it; to set, it writes `values` and `rows` to `gymnasium.set.NAME`. `gymnasium.kind.NAME` of a
single environment is "method" or "attribute". A server has these properties for allowed names.
"""

# `served.py` is the server's end, `remote.py` the client's.

CALL = "gymnasium.call"
"""The parent of the properties with a method's results in each row."""

KIND = "gymnasium.kind"
"""The parent of the properties that tell methods from attributes."""

METHOD, ATTRIBUTE = "method", "attribute"

SET = "gymnasium.set"
"""The parent of the properties that set an attribute in each row."""
