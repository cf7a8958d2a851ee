"""A library in a child process: `ProcessRunner` here, `child` there, and messages in between."""

# Read `runner.py` first.
