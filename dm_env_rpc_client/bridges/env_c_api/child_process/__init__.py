"""A library in a child process: `runner.py` implements both ends, and `pipe.py` the messages."""

# Read `runner.py` first.
