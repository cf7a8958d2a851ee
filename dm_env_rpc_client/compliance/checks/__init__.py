"""The checks, one file for each subject; `compliance/runner.py` lists them in order."""
