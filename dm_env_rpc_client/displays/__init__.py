"""HTML of specs, values, TimeSteps and connections, for notebooks."""

# Pure; may import no other room. Read `values.py` first.
