"""The protocol rules for clients and servers, implemented without I/O.

`docs/explanations/states.md` describes the states of a connection.
"""

# Read `lifecycle.py` first, the table of states; then `envelopes.py` (requests and responses),
# `pipeline.py` (matching answers to requests) and `step_codec.py` (a Step as bytes: the hot path).
# `timesteps.py` builds TimeSteps, also the MID steps of many environments at once. `batches.py`
# defines batches of rows, and `autoreset.py` what follows the end of a row. `observing.py` is the
# hook to which both ends report requests.
