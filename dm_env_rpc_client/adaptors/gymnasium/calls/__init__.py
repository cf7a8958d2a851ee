"""Method calls and attributes of Gymnasium environments at a server.

Calls and attributes travel as properties of a world. The values of these properties are JSON in
the form of `adaptors.gymnasium.value_json`. To call a method, the client writes any `args`,
`kwargs` and `rows` to the property `gymnasium.call.NAME`, and reads the result from the same
property. To set an attribute, the client writes `values` and `rows` to `gymnasium.set.NAME`. For a
single environment, the value of the property `gymnasium.kind.NAME` is "method" or "attribute". A
server offers these properties only for the names that it allows.
"""

# `served.py` is the server's end, `remote.py` the client's.

CALL = "gymnasium.call"
"""The parent of the properties that call a method in each row."""

KIND = "gymnasium.kind"
"""The parent of the properties that distinguish methods from attributes."""

METHOD, ATTRIBUTE = "method", "attribute"

SET = "gymnasium.set"
"""The parent of the properties that set an attribute in each row."""
