"""gRPC over HTTP/2 on a plain socket (RFC 9113 and the gRPC wire protocol)."""

# Read `framing.py` first: the state of a connection, without I/O. It is composed of
# `receive_buffer.py`, `header_block.py` with `header_decoder.py`, `message_assembler.py` (content
# to messages) and `send_queue.py` (messages to frames, windows). `client_half.py` is the client's
# role, with the shells `client_connection.py` and `stream.py` for threads and `async_stream.py`
# for event loops; `target.py`, `sockets.py`, `request.py` and `attempts.py` open connections.
# `server_half.py` is the server's role, with the shell `listener.py`: it serves the `clients.py`,
# one `server_connection.py` each, of which those that break HTTP/2 leave a `lingering.py`;
# `lead.py` says in which thread, and `stream_threads.py` has streams whose answers take long, as
# `pace.py` says. `busy_wait.py` is how both ends look for input before they sleep.
