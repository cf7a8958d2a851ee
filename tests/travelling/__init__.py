"""A table that is run: environments with a habit each, by every way of travelling.

`environments/` has the environments, `ways/` what plays them, `in_process.py` what is expected, and
`documented.py` what the guides say is different. Read `test_table.py` first.
"""
