"""The command `dm-env-rpc`; `dm-env-rpc --help` shows how to use it.

The guide is `docs/reference/command-line.md`.
"""

# Read `app.py` first: it adds the commands. Each command has a file, here or in a folder of related
# commands. `entry.py` starts the command line, `group.py` and `failures.py` turn errors into lines
# and exit codes, `options.py` has the options that several commands share.
