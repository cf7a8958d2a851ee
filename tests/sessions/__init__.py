"""The package in environments other than the developer's: `python -m tests.sessions SESSION`.

Each session is a module with a `main` that takes the arguments after its name. They import nothing
but the standard library, so that any Python runs them without an install.
"""
