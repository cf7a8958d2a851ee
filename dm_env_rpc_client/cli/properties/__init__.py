"""The commands `dm-env-rpc properties list`, `get` and `set`, for both kinds of properties."""

# Read `commands` first.
