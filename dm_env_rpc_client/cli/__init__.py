"""The command `dm-env-rpc`; see `dm-env-rpc --help`.

The guide is `docs/reference/command-line.md`.
"""

# Read `app.py` first: it adds the commands. Each has a file, here or in a folder with others of its
# kind. `entry.py` starts the command, `group.py` and `failures.py` turn errors into lines and exit
# codes, `options.py` has the options that several commands share.
