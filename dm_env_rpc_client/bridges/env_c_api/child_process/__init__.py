"""Runs a library in a child process.

`runner.py` contains the code of both processes, and `pipe.py` transfers their messages.
"""

# Read `runner.py` first.
