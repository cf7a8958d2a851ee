"""Many remote environments stepped by one thread, over separate streams or in batched worlds."""

# `open_rows.py` opens either kind. `row_worlds.py` has their common interface, and steps streams;
# `batch_worlds.py` steps the rows of batched worlds; `pool.py` sends and waits for both, and
# `rows.py` holds the results.
