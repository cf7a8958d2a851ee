"""`dm-env-rpc record`, `replay` and `export`, and `inspect` for a recording."""
