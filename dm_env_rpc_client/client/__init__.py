"""Connections to servers: send requests and give each answer to the request it belongs to.

`connection.py` is for threads, `async_connection.py` for coroutines. Read `protocol/pipeline.py`
first, the rules that both follow, then `threaded_pipeline.py`, which adds threads and locks.
May import `protocol`, `transports` and what they import; not `server`.
"""
