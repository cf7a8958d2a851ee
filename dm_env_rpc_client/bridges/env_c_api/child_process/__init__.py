"""A library in a child process: `runner.py` has both ends, `pipe.py` the messages."""

# Read `runner.py` first.
