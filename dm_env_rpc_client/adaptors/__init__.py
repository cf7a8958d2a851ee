"""Remote environments behind the interfaces of other libraries, and the other way round.

One file or folder and one extra for each library, named after it. May import `environment` and
what it imports.
"""
