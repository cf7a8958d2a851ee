"""Servers that connect to the program that uses their environments."""

# `greeting.py` is what both ends say first, `incoming.py` the end that is dialed, `dialer.py` the
# other one.
