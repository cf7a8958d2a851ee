"""`dm-env-rpc serve`: the options, the environments by name, and the messages meanwhile."""

# Read `serve` first.
