"""The protocol rules of client and server, without I/O.

The states of a connection are in `docs/explanations/states.md`.
"""

# Read `lifecycle.py` first, the table of states; then `envelopes.py` (requests and responses),
# `pipeline.py` (which answer belongs to which request) and `step_codec.py` (a Step as bytes: the
# hot path). `timesteps.py` has TimeSteps, and the MID ones of many environments at once.
# `batches.py` says what a batch of rows is, and `autoreset.py` what follows the end of a row.
# `observing.py` is the hook that both ends tell of requests.
