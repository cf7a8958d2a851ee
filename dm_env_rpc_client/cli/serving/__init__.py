"""`dm-env-rpc serve`: the options, the environments by name, and the output."""

# Read `serve` first.
