"""`dm-env-rpc properties list`, `get` and `set`, over either interface to properties."""

# Read `commands` first.
