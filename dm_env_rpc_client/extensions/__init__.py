"""Client side of the protocol's extensions: reading, writing and listing properties.

The guide is `docs/how-to/properties.md`.
"""

# `properties.py` is the properties extension, `legacy_properties.py` the same for servers of the
# 1.0 line. Read `property_access.py` first, the interface of both.
