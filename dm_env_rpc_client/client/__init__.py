"""Connections to servers: send requests and give each answer to the request it belongs to.

The guide is `docs/how-to/connections.md`.
"""

# `connection.py` is for threads, `async_connection.py` for coroutines. Read
# `protocol/pipeline.py` first, the rules that both follow, then `threaded_pipeline.py`, which
# adds threads and locks.
