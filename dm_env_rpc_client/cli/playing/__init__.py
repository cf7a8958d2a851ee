"""`dm-env-rpc play`: an environment in a terminal.

Read `play_loop` first: it is the only file that steps the environment. `controls` and `panel` map
keys to actions, `bindings` reads `--keys`, `keyboard` reads keys, `pictures` draws arrays with
characters, and `screen` lays out the window. May import `tensors`, `errors` and files of `cli`.
"""
