"""The HTTP/2 protocol of clients and servers, without I/O.

These modules turn received bytes into messages and events, and messages into bytes to send.
"""

# Read `framing.py` first: the state of a connection. It is composed of `control_frames.py`,
# `message_assembler.py` (content to messages) and `send_queue.py` (messages to frames, windows).
# `whole_messages.py` accepts a message that came alone, as most do, without parsing frames.
# `frames.py` has the frames, and what either half of a connection must not send; `client_half.py`
# and `server_half.py` are the two, and `headers.py` has the headers of a request, for both.
