"""HTML of specs, values, TimeSteps and connections; text that is safe for terminals."""

# Pure; may import no other room. Read `values.py` and `plain_text.py` first.
