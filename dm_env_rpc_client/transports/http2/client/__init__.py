"""A client's connections over HTTP/2: for threads and for event loops."""

# Read `connection.py` and `stream.py` first, for threads; `async_stream.py` is for event loops.
# `target.py`, `request.py`, `attempts.py` and `tls_probe.py` open connections.
