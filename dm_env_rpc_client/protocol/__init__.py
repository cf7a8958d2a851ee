"""What client and server agree on, without I/O.

Read `lifecycle.py` first, the table of states; then `envelopes.py` (requests and responses),
`pipeline.py` (which answer belongs to which request) and `step_codec.py` (a Step as bytes: the
hot path). May import `tensors`, `errors` and the generated modules.
"""
