"""HTML and plots of specs, values, TimeSteps and connections."""

# Pure. Read `values.py` first.
