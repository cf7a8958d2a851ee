"""The checks, one file for each subject; `compliance/table.py` lists them in order."""
