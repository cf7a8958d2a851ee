"""Bytes between processes: whole messages, in order, over HTTP/2 or grpcio.

A transport knows nothing of what is in a message. `http2/` is this package's own transport, a
socket read by the thread that waits; `grpc/` is grpcio. This is the only room that imports grpc
or socket (with the exceptions that `tests/test_layering.py` lists). It may import `errors`.

Read `streams.py` first: the interface that both transports have. `opening.py` chooses one.
"""
