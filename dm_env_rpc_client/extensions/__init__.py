"""Extensions of the protocol, as a client uses them.

`properties.py` is the properties extension, `legacy_properties.py` the same for servers of the
1.0 line; `property_access.py` is what both have in common. May import `client` and `tensors`.
"""
