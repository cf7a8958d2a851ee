"""The commands `dm-env-rpc properties list`, `get` and `set`, for both properties interfaces."""

# Read `commands` first.
