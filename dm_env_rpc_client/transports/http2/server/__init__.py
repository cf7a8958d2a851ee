"""The server's HTTP/2 listener. One thread reads requests, dispatches them and writes answers."""

# Read `listener.py` first. It serves the `clients.py`, one `connection.py` each, and opens their
# streams. `leading.py` has the rule which thread leads, `answering.py` who answers a stream.
