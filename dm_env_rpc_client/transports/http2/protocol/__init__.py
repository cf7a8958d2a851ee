"""HTTP/2 without I/O: bytes in, messages and events out, for a client and for a server."""

# Read `framing.py` first: the state of a connection. It is composed of `receive_buffer.py`,
# `header_block.py` with `header_decoder.py`, `message_assembler.py` (content to messages) and
# `send_queue.py` (messages to frames, windows). The roles are `client_half.py` and
# `server_half.py`.
