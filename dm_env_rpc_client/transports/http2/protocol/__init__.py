"""HTTP/2 without I/O: bytes in, messages and events out, for a client and for a server."""

# Read `framing.py` first: the state of a connection. It is composed of `control_frames.py` with
# `header_decoder.py`, `message_assembler.py` (content to messages) and `send_queue.py` (messages to
# frames, windows). `role.py` is what a half of a connection is; `client_half.py` and
# `server_half.py` are the two, and `headers.py` has those of a request, for both.
