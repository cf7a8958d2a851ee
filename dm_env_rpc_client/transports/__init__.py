"""Transports, which carry ordered streams of whole messages over HTTP/2 or grpcio.

A transport does not interpret messages. The subpackage `http2/` contains this package's own
transport, in which the thread that waits for a message also reads the socket. The subpackage
`grpc/` contains a transport that uses grpcio.
`docs/explanations/performance.md` compares the speed of both transports.
"""

# This is the only room that imports grpc or socket (with the exceptions that
# `tests/test_layering.py` lists).
#
# Read `streams.py` first, the client's interface of both transports, then `server_streams.py`, the
# server's. `endpoint.py` holds the server's address and the connection options; `net/` is shared by
# both transports and both ends. `opening.py` selects the transport of a client, `listeners.py`
# that of a server. `services.py` holds the services besides the environment. Imports only go
# downwards: choice, transport, interface, net (`tests/test_layering.py`).

import os

# With its own fork handlers, on by default, grpcio crashed 4 of 6 forked children of a process that
# used grpc.aio, and none of 6 without them (tests/reliability/processes/test_forked_children.py).
# It reads the variable when it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
