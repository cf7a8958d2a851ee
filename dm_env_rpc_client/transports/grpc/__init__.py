"""Streams over grpcio, for targets, credentials and proxies that only grpcio supports."""

# Read `channel.py` first.
