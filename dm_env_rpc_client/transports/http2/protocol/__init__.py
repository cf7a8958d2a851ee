"""HTTP/2 without I/O: bytes in, messages and events out, for a client and for a server."""

# Read `framing.py` first: the state of a connection. It is composed of `control_frames.py`,
# `message_assembler.py` (content to messages) and `send_queue.py` (messages to frames, windows).
# `frames.py` has the frames, and what either half of a connection must not send; `client_half.py`
# and `server_half.py` are the two, and `headers.py` has the headers of a request, for both.
