"""A server's listener over HTTP/2: one thread reads, has requests answered, and writes."""

# Read `listener.py` first. It serves the `clients.py`, one `connection.py` each; those that break
# HTTP/2 are in `draining.py` for a while. `leader.py` says which thread leads; `streams.py` is what
# it does for streams, and `stream_threads.py` has those whose answers take long. `acceptor.py`
# accepts for workers.
