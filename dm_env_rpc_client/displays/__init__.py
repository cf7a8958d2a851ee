"""What specs, values and connections look like in a notebook, as HTML.

Pure, and imports no other room. Read `values.py` first.
"""
