"""The client side of the protocol extensions for reading, writing and listing properties.

The guide is `docs/how-to/properties.md`.
"""

# `properties.py` is the properties extension, with the interface of both; `legacy_properties.py`
# is the same for servers of the 1.0 line.
