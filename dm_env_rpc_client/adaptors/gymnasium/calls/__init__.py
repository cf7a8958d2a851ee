"""Access to the methods and attributes of Gymnasium environments on a server.

Calls and attributes are sent as properties of a world. Their values are JSON in the form that
`adaptors.gymnasium.value_json` defines. To call a method, the client writes `args`, `kwargs` and
`rows`, if any, to the property `gymnasium.call.NAME`, and reads the result from the same property.
To set an attribute, the client writes `values` and `rows` to `gymnasium.set.NAME`. For a single
environment, the value of the property `gymnasium.kind.NAME` is "method" or "attribute". A server
offers these properties only for the names that it allows.
"""

# `served.py` is the server's end, `remote.py` the client's.

CALL = "gymnasium.call"
"""The parent of the properties that call a method in each row."""

KIND = "gymnasium.kind"
"""The parent of the properties that distinguish methods from attributes."""

METHOD, ATTRIBUTE = "method", "attribute"

SET = "gymnasium.set"
"""The parent of the properties that set an attribute in each row."""
