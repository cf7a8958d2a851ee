"""Mistakes that users make, and what the error says about each.

One file for each kind: calls and commands, arguments, environments that are served. A text names
the argument or the method, says what was given, and what to do.
"""
