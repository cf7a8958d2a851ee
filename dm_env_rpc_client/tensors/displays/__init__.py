"""HTML and plots that display specs, values, TimeSteps and connections."""

# Pure. Read `values.py` first.
