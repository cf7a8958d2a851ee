"""Connections that send requests to a server and match each answer with its request.

The guide is `docs/how-to/connections.md`.
"""

# Read `protocol/pipeline.py` first: the rules that all connections follow. `connection.py` adds
# threads and locks, `futures.py` what waits for futures; `connecting.py` opens such connections.
# `async_connection.py` and `async_pipeline.py` are for coroutines.
