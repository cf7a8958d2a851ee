"""NumPy values to Tensor messages and back, strictly: no value changes in silence.

Pure: no I/O, no state. Read `codecs.py` first, the eleven data types; then `packing.py` (values),
`specs.py` (what values may be) and `spec_manager.py` (all values of an agent by UID and name).
May import `errors` and the generated modules.
"""
