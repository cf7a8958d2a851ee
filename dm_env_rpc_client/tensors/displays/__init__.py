"""HTML and plots for specs, values, TimeSteps and connections."""

# Pure. Read `values.py` first.
