"""gRPC over HTTP/2 on a plain socket (RFC 9113 and the gRPC wire protocol).

Read `framing.py` first: the state of a connection, without I/O. `stream.py` and
`async_stream.py` are the shells around it, for threads and for event loops.
"""
