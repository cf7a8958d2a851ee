"""Conversion between NumPy values and Tensor messages that does not change any value.

`docs/reference/values-and-specs.md` describes the conversion.
"""

# Pure: no I/O, no state. Read `codecs.py` first, the eleven data types; then `packing.py`
# (values), `specs.py` (allowed values) and `spec_manager.py` (all values of an agent by UID and
# name). `displays` shows them in notebooks, `controls` sets them by hand.
