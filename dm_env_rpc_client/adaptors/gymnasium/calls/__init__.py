"""Method calls and attributes of Gymnasium environments at a server.

Calls and attributes travel as properties of a world, whose values are JSON of
`adaptors.gymnasium.value_json`. To call a method, the client writes `args`, `kwargs` and `rows`,
if there are any, to the property `gymnasium.call.NAME`, and reads the result from the same
property. To set an attribute, the client writes `values` and `rows` to `gymnasium.set.NAME`. The
property `gymnasium.kind.NAME` of a single environment is "method" or "attribute". A server offers
these properties only for the names that it allows.
"""

# `served.py` is the server's end, `remote.py` the client's.

CALL = "gymnasium.call"
"""The parent of the properties with a method's results in each row."""

KIND = "gymnasium.kind"
"""The parent of the properties that tell methods from attributes."""

METHOD, ATTRIBUTE = "method", "attribute"

SET = "gymnasium.set"
"""The parent of the properties that set an attribute in each row."""
