"""The command `dm-env-rpc`; see `dm-env-rpc --help`."""
