"""The checks, with one file per subject.

`compliance/runner.py` lists the checks in order.
"""
