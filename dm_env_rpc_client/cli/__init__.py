"""The command `dm-env-rpc`; see `dm-env-rpc --help`.

The guide is `docs/reference/command-line.md`.
"""

# Read `app.py` first: it adds the commands. Each command has a file of its own (`run`, `serve`,
# `inspect`, `play`, `properties`, `check`, `health`, `bench`, `record` with `replay`, `export`),
# and `playing/` is the application of `play`. `entry.py` starts the command, `group.py` and
# `failures.py` turn errors into lines and exit codes, `options.py` has the options that
# several commands share.
