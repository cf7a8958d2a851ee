"""Fuzzing harnesses: invalid input gives a valid value or one error of the package.

    python -m tests.fuzz tensors --seconds 60 --seed 7

`targets.py` lists what is tried; `wire.py` changes protobuf messages and `__main__.py` is the
command. What was found, in `corpus/TARGET/`, is tried again by the tests.
"""
