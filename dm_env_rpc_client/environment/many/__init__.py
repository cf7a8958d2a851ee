"""Many remote environments that one thread steps: over streams, or in batched worlds."""

# `open_rows.py` opens either. `row_worlds.py` says what both can do, and steps streams;
# `batch_worlds.py` steps the rows of batched worlds; `pool.py` sends and waits for both, and
# `rows.py` holds what they answer.
