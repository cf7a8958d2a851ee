"""A server's listener over HTTP/2: one thread reads, has requests answered, and writes."""

# Read `listener.py` first. It serves the `clients.py`, one `connection.py` each, and opens their
# streams. `leading.py` has the rule which thread leads, `answering.py` who answers a stream.
