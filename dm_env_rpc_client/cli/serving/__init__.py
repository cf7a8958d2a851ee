"""`dm-env-rpc serve`: the options, the environments by their names, and what is told meanwhile."""

# Read `serve` first.
