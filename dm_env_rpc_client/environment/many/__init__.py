"""Many remote environments that one thread steps: over streams, or in batched worlds."""

# `row_worlds.py` opens either. `pool.py` steps streams together, and
# `batch_worlds.py` the rows of batched worlds on top of it; `rows.py` holds what they answer.
