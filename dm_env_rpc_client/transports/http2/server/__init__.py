"""A server's listener over HTTP/2: one thread reads, has requests answered, and writes."""

# Read `listener.py` first. It serves the `clients.py`, one `connection.py` each, with their
# `streams.py`. `answering.py` has the rule who answers a stream, and which thread leads.
# `accepting.py` has the sockets that listen.
