"""NumPy values to Tensor messages and back; a conversion that would change a value is an error.

The guide is `docs/reference/values-and-specs.md`.
"""

# Pure: no I/O, no state. Read `codecs.py` first, the eleven data types; then `packing.py`
# (values), `specs.py` (which values are allowed) and `spec_manager.py` (all values of an agent by
# UID and name). `displays` shows them in notebooks, `controls` sets them by hand.
