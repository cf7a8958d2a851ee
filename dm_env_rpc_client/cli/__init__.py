"""The command `dm-env-rpc`; see `dm-env-rpc --help`.

One file for each command, and `app.py` with all of them. May import every room below it.
"""
