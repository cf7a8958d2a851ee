"""The command `dm-env-rpc serve`, with its options, sources of environments, and output."""

# Read `serve` first.
