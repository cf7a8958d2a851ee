"""The client's HTTP/2 connections, for threads and for event loops."""

# Read `connection.py` and `stream.py` first. `receiver.py` receives so that an interrupt tears
# nothing. `connecting.py` opens connections.
