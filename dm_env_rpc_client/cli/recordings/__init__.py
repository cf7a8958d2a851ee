"""`dm-env-rpc record`, `replay` and `export`, and what `inspect` shows of a recording."""
