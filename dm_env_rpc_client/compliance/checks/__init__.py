"""The checks, in one file for each subject.

`compliance/runner.py` lists the checks in order.
"""
