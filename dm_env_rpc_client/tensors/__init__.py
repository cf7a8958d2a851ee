"""Conversion of NumPy values to Tensor messages and back, which must not change a value.

The guide is `docs/reference/values-and-specs.md`.
"""

# Pure: no I/O, no state. Read `codecs.py` first, the eleven data types; then `packing.py`
# (values), `specs.py` (allowed values) and `spec_manager.py` (all values of an agent by UID and
# name). `displays` shows them in notebooks, `controls` sets them by hand.
