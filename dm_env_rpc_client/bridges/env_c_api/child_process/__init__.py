"""Run a library in a child process: `runner.py` has both ends, `pipe.py` their messages."""

# Read `runner.py` first.
