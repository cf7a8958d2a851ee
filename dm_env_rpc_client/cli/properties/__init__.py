"""`dm-env-rpc properties list`, `get` and `set`, by the extension or by core messages."""

# Read `commands` first.
