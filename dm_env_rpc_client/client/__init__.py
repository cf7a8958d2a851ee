"""Connections to servers: send requests and give each answer to the request it belongs to.

The guide is `docs/how-to/connections.md`.
"""

# Read `protocol/pipeline.py` first: the rules that all connections follow. `connection.py` adds
# threads and locks, `futures.py` what waits for futures; `connecting.py` opens such connections.
# `async_connection.py` and `async_pipeline.py` are for coroutines.
