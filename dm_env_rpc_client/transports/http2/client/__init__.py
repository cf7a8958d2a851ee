"""The client's connections over HTTP/2, for threads and for event loops."""

# Read `connection.py` and `stream.py` first. `receiver.py` receives so that an interrupt tears
# nothing. `connecting.py` opens connections.
