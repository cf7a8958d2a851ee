"""gRPC over HTTP/2 on a plain socket (RFC 9113 and the gRPC wire protocol).

Read `framing.py` first: the state of a connection, without I/O. It is composed of
`receive_buffer.py`, `header_block.py`, `message_assembler.py` (content to messages) and
`send_queue.py` (messages to frames, windows); `client_half.py` is the client's role. `stream.py`
and `async_stream.py` are the shells around it, for threads and for event loops; `target.py`,
`sockets.py`, `request.py` and `attempts.py` open connections. `server_half.py` is the server's
role, `listener.py` the shell around it. May import `transports` and `errors`.
"""
