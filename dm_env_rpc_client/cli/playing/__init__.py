"""`dm-env-rpc play`: an environment in a terminal.

`controls` makes keys of action specs, `keyboard` reads keys, `pictures` makes characters of
arrays, `screen` lays out what is seen, and `game` plays: the only part that steps.
"""
