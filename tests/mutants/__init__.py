"""Random changes of the code, and whether the tests notice them: `python -m tests.mutants`.

`changes.py` makes the mutants of a file, `concern.py` finds the tests that concern it, `trying.py`
runs them in copies of the checkout, and `__main__.py` is the command.
"""
