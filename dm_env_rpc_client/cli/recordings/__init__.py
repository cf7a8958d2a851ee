"""The commands `dm-env-rpc record`, `replay` and `export`, and `inspect` for recordings."""
