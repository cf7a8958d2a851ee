"""What specs, values and connections look like in a notebook, as HTML; no I/O."""
